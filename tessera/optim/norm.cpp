#include "tessera/optim/norm.h"

namespace tessera::optim {

double clip_factor(double norm, double max_norm) {
  if (max_norm == 0) return 1;
  const double factor = max_norm / (norm + 1e-6);
  return factor >= 1 ? 1 : factor;  // a NaN goes on
}

}  // namespace tessera::optim
