// A conversation with a model.
#pragma once

#include "tessera/inference/request.h"
#include "tessera/inference/session.h"
#include "tessera/mesh/mesh.h"

namespace tessera::inference {

/// Reads a message a line from standard input and writes the answers, until the input ends or the
/// user leaves. Lines that begin with "/" are for the program: /reset, /system TEXT, /save FILE,
/// /help, /exit. At a terminal, Ctrl-C stops an answer. UserError: what goes wrong with a message, where
/// nobody is there to mend it (no terminal). Returns the exit code: 0, or 130 for Ctrl-C at the prompt.
/// Collective.
int chat(const Request& request, Session& session, const mesh::DeviceMesh& mesh);

}  // namespace tessera::inference
