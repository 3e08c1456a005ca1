// A job on a mesh, with what is changed in it.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "tests/parity/fixture.h"
#include "tests/support/tiny_job.h"

namespace tessera {

using Change = std::function<void(config::RunConfig&)>;

struct Case {
  std::string name;
  mesh::MeshShape shape;
  Change change = [](config::RunConfig&) {};
};

/// `job` on the case's mesh, changed as it says.
inline config::RunConfig job_of(config::RunConfig job, const Case& c) {
  job = parity::over(std::move(job), c.shape);
  c.change(job);
  config::check(job, {});
  return job;
}

}  // namespace tessera
