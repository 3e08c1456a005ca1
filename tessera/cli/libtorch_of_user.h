// A Tessera that was installed without LibTorch (the small package, the wheel) uses the user's
// PyTorch.
#pragma once

#include <filesystem>

namespace tessera::cli {

/// If lib/tessera/needs_libtorch stands below `prefix`: LD_LIBRARY_PATH of this process begins with
/// the LibTorch of that version that `worker`, started next, is to load: TESSERA_LIBTORCH, else
/// PyTorch beside this program (a wheel's), else that of python3. Classes of PyTorch change their
/// layout from one version to the next. UserError: none of it, or one that lacks what `worker`
/// calls. Cost: 0.1 s.
void use_libtorch_of_user(const std::filesystem::path& worker, const std::filesystem::path& prefix);

}  // namespace tessera::cli
