// Stands in for Gloo's header of this name: ProcessGroupGloo.hpp includes it and uses nothing of
// it.
#pragma once
