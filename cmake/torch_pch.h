// The precompiled header of every target with LibTorch: narrow, so that a one-file change rebuilds
// in seconds.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
