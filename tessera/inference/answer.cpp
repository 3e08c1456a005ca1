#include "tessera/inference/answer.h"

#include <string>

#include "tessera/inference/chat.h"
#include "tessera/inference/compare.h"
#include "tessera/inference/console.h"
#include "tessera/inference/evaluate.h"
#include "tessera/inference/export_quantised.h"
#include "tessera/inference/session.h"
#include "tessera/train/join_run.h"

namespace tessera::inference {
namespace {

void generate(const Request& request, Session& session, const mesh::DeviceMesh& mesh) {
  const auto write = [&](const std::string& text) { return write_out(mesh, text), true; };
  Input input(mesh);
  const auto prompt = request.prompt.empty() ? input.all() : request.prompt;
  if (request.echo) write(prompt);
  const auto answer = session.go_on(session.tokens_of(prompt), write);
  write("\n");
  write_note(mesh, end_line(answer));
  if (request.speed) write_note(mesh, speed_line(answer));
}

}  // namespace

int answer(const Request& request, const launch::RankEnvironment& environment) {
  const config::ParallelSection parallel{
      .tp = environment.world_size, .sequence_parallel = false, .backend = request.backend};
  train::set_threads(parallel, environment);
  const auto mesh = train::make_mesh(parallel, environment);
  if (request.task == Task::compare) {
    compare(request, mesh);
    return 0;
  }
  if (request.task == Task::quantise) {
    export_quantised(request);
    return 0;
  }
  if (request.task == Task::evaluate) {
    evaluate(request, mesh);
    return 0;
  }
  Session session(request, mesh);
  if (request.task == Task::chat) return chat(request, session, mesh);
  generate(request, session, mesh);
  return 0;
}

}  // namespace tessera::inference
