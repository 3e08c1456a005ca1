#include "tessera/parallel/data/units.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "tessera/base/error.h"
#include "tessera/nn/dropout.h"
#include "tessera/nn/layers.h"

namespace tessera::parallel {
namespace {

struct BlockImpl : nn::Hookable {
  BlockImpl() {
    register_module("in", in);
    register_module("out", out);
  }
  nn::Linear in{8, 16, true}, out{16, 8};
};
using Block = nn::Hooked<BlockImpl>;

struct Model : nn::Hookable {
  explicit Model(bool tied)
      : head(tied ? nn::LanguageModelHead(embed->weight) : nn::LanguageModelHead(8, 20)) {
    register_module("embed", embed);
    for (size_t i = 0; i < 3; ++i) register_module("block" + std::to_string(i), blocks[i]);
    register_module("norm", norm);
    register_module("drop_in", drop);
    register_module("head", head);
  }
  nn::Embedding embed{20, 8};
  std::array<Block, 3> blocks;
  nn::RMSNorm norm{8, 1e-5};
  nn::Dropout drop{"drop", 0.1};
  nn::LanguageModelHead head;
};

std::string names_of(torch::nn::Module& model, const UnitRule& rule) {
  std::string names;
  int64_t numel = 0;
  const auto units = make_units(model, rule);
  const auto parameters = parameters_of(units);
  for (size_t i = 0; i < units.size(); ++i) {
    names += (i == 0 ? "" : " ") + units[i].name;
    for (const auto& parameter : parameters[i]) numel += parameter.numel();
  }
  int64_t expected = 0;
  for (const auto& parameter : model.parameters()) expected += parameter.numel();
  EXPECT_EQ(numel, expected) << names;  // every parameter in exactly one unit
  return names;
}

TEST(Units, ByClassWithWhatLiesBetween) {
  Model model(/*tied=*/false);
  EXPECT_EQ(names_of(model, {.kind = UnitRuleKind::by_class, .classes = {"Block"}}),
            "embed block0 block1 block2 norm+head");
}

TEST(Units, TiedWeightsLiveInOneUnit) {
  Model model(/*tied=*/true);
  EXPECT_EQ(names_of(model, {.kind = UnitRuleKind::by_class, .classes = {"Block"}}),
            "embed+norm+head block0 block1 block2");
}

TEST(Units, BySizeAreTheInnermostThatAreLargeEnough) {
  Model model(/*tied=*/false);
  // A linear has 144 or 128 parameters, a block 272, embedding and head 160.
  EXPECT_EQ(names_of(model, {.kind = UnitRuleKind::by_size, .min_num_params = 200}),
            "embed block0 block1 block2 norm+head");
  EXPECT_EQ(names_of(model, {.kind = UnitRuleKind::by_size, .min_num_params = 130}),
            "embed block0.in out block1.in out block2.in out+norm head");
}

TEST(Units, ByNameAndWhole) {
  Model model(/*tied=*/false);
  EXPECT_EQ(names_of(model, {.kind = UnitRuleKind::by_name, .patterns = {"*.out"}}),
            "embed+in block0.out in block1.out in block2.out norm+head");
  EXPECT_EQ(names_of(model, {.kind = UnitRuleKind::whole_model}), "model");
}

TEST(Units, AModuleWithoutParametersIsNone) {
  Model model(/*tied=*/false);
  EXPECT_EQ(names_of(model, {.kind = UnitRuleKind::by_name, .patterns = {"*in"}}),
            "embed block0.in out block1.in out block2.in out+norm+head");
  EXPECT_THROW(make_units(model, {.kind = UnitRuleKind::by_name, .patterns = {"drop*"}}),
               UserError);
}

/// Each borrows what the ones beside it have: all become one unit.
struct Chain : nn::Hookable {
  struct LinkImpl : nn::Hookable {
    explicit LinkImpl(std::vector<torch::Tensor> others) : borrowed(std::move(others)) {
      own = register_parameter("own", torch::ones({3}));
    }
    std::vector<torch::Tensor> borrowed_parameters() const override { return borrowed; }
    std::vector<torch::Tensor> borrowed;
    torch::Tensor own;
  };
  Chain() {
    for (int i = 0; i < 2; ++i)
      links.push_back(std::make_shared<LinkImpl>(std::vector<torch::Tensor>()));
    links.push_back(std::make_shared<LinkImpl>(std::vector{links[0]->own, links[1]->own}));
    links.push_back(std::make_shared<LinkImpl>(std::vector<torch::Tensor>()));
    for (const auto& link : links)
      register_module("link" + std::to_string(children().size()), link);
  }
  std::vector<std::shared_ptr<LinkImpl>> links;
};

TEST(Units, WhatTiesSeveralUnitsMakesThemOne) {
  Chain chain;
  EXPECT_EQ(names_of(chain, {.kind = UnitRuleKind::by_name, .patterns = {"link*"}}),
            "link0+link1+link2 link3");
}

TEST(Units, SizesMayBeThoseOfWholeParameters) {
  Model model(/*tied=*/false);
  EXPECT_EQ(names_of(model, {.kind = UnitRuleKind::by_size,
                             .min_num_params = 260,
                             .num_elements = [](const auto& part) { return 2 * part.numel(); }}),
            "embed block0.in out block1.in out block2.in out+norm head");
}

TEST(Units, AStageNeedNotHaveWhatARuleNames) {
  Model model(/*tied=*/false);
  EXPECT_EQ(names_of(model, {.kind = UnitRuleKind::by_name,
                             .patterns = {"layers.*", "block1"},
                             .is_stage = true}),
            "embed+in+out block1 in+out+norm+head");
}

TEST(Units, AModuleUnderTwoNamesIsOne) {
  nn::Linear shared(8, 8), other(8, 8);
  struct Root : nn::Hookable {};
  Root root;
  root.register_module("a", shared), root.register_module("b", shared);
  root.register_module("c", other);
  const auto units = make_units(root, {.kind = UnitRuleKind::by_size, .min_num_params = 60});
  ASSERT_EQ(units.size(), 2u);
  EXPECT_EQ(units[0].name, "a");
  EXPECT_EQ(units[1].name, "c");
}

/// What make_units says of a mistake; empty: nothing.
std::string complaint(torch::nn::Module& model, const UnitRule& rule) {
  try {
    make_units(model, rule);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(Units, WhatMatchesNothingIsAnError) {
  Model model(/*tied=*/false);
  EXPECT_EQ(complaint(model, {.kind = UnitRuleKind::by_class, .classes = {"Blok"}}),
            "units by class: no module of class Blok in the model; did you mean 'Block'?");
  torch::nn::Sequential plain(torch::nn::Linear(2, 2));
  EXPECT_EQ(complaint(*plain, {.kind = UnitRuleKind::by_class, .classes = {"Linear"}}),
            "units by class: expected Linear to be a module derived from tessera::nn::Hookable");
  EXPECT_THROW(make_units(model, {.kind = UnitRuleKind::by_name, .patterns = {"layers.*"}}),
               UserError);
}

TEST(Units, GivenModules) {
  Model model(/*tied=*/false);
  EXPECT_EQ(names_of(model, {.kind = UnitRuleKind::given,
                             .modules = {model.blocks[2]->out.get(), model.blocks[0].get(),
                                         model.blocks[0]->in.get()}}),
            "embed block0 in+out+in block2.out norm+head");
}

TEST(Units, GivenModulesThatMakeNoUnitAreErrors) {
  Model model(/*tied=*/false), other(/*tied=*/false);
  const auto given = [&](std::vector<nn::Hookable*> modules) {
    return complaint(model, {.kind = UnitRuleKind::given, .modules = std::move(modules)});
  };
  auto* block = model.blocks[0].get();
  EXPECT_EQ(
      given({}),
      "units given: expected at least one module, got none; list them in UnitRule::modules or "
      "choose another kind");
  EXPECT_EQ(
      given({block, nullptr}),
      "units given: expected modules of the model, got null as UnitRule::modules[1]; register "
      "it or leave it out");
  EXPECT_EQ(
      given({other.blocks[0].get()}),
      "units given: expected modules of the model, got Block as UnitRule::modules[0]; register "
      "it or leave it out");
  EXPECT_EQ(given({block, model.drop.get()}),
            "units given: expected modules with parameters, got drop_in (Dropout); leave it out");
  EXPECT_EQ(complaint(model, {.kind = UnitRuleKind::given, .is_stage = true}), "");
}

TEST(Units, AParameterOutsideOfHookableModulesIsNamed) {
  struct Plain : torch::nn::Module {};
  Plain model;
  model.register_module("child", std::make_shared<Plain>())
      ->register_module("proj", torch::nn::Linear(2, 3));
  const std::string what =
      ": expected a module derived from tessera::nn::Hookable, got torch::nn::LinearImpl; make it "
      "a "
      "member of one, and call that one through tessera::nn::Hooked";
  EXPECT_EQ(complaint(model, {.kind = UnitRuleKind::whole_model}), "child.proj" + what);
  EXPECT_EQ(complaint(*torch::nn::Linear(2, 3), {}), "the model" + what);
  torch::nn::Sequential chain(nn::Linear(2, 3), torch::nn::Linear(3, 2));
  EXPECT_EQ(complaint(*chain, {.min_num_params = 1}), "1" + what);
  struct Net : nn::Hookable {};
  Net net;  // it has what a plain module inside has
  net.register_module("chain", chain);
  EXPECT_EQ(names_of(net, {.min_num_params = 1}), "chain.0 root");
}

TEST(Units, APlainModelMayHaveWhatAModuleInsideHas) {
  torch::nn::Module model;
  const auto embed = model.register_module("embed", nn::Embedding(20, 8));
  model.register_parameter("head", embed->weight);
  EXPECT_EQ(make_units(model, {.kind = UnitRuleKind::whole_model}).size(), 1u);
}

TEST(Units, AModelWithoutParametersIsAnError) {
  struct Forgetful : nn::Hookable {
    nn::Linear never_registered{2, 3};
  };
  Forgetful model;
  EXPECT_EQ(complaint(model, {.kind = UnitRuleKind::whole_model}),
            "the model: expected parameters, got none in its modules; register what has them "
            "(register_parameter, register_module)");
  EXPECT_EQ(complaint(model, {.kind = UnitRuleKind::whole_model, .is_stage = true}), "");
}

}  // namespace
}  // namespace tessera::parallel
