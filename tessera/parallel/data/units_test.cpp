#include "tessera/parallel/data/units.h"

#include <gtest/gtest.h>

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
  for (size_t i = 0; i < units.size(); ++i) {
    names += (i == 0 ? "" : " ") + units[i].name;
    for (const auto& parameter : parameters_of(units, i)) numel += parameter.numel();
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

TEST(Units, WhatMatchesNothingIsAnError) {
  Model model(/*tied=*/false);
  try {
    make_units(model, {.kind = UnitRuleKind::by_class, .classes = {"Blok"}});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(),
                 "units by class: no module of class Blok in the model; did you mean 'Block'?");
  }
  EXPECT_THROW(make_units(model, {.kind = UnitRuleKind::by_name, .patterns = {"layers.*"}}),
               UserError);
}

TEST(Units, AParameterOutsideOfHookableModulesIsNamed) {
  torch::nn::Module model;
  auto child = std::make_shared<torch::nn::Module>();
  child->register_parameter("weight", torch::ones({3}));
  model.register_module("child", child);
  try {
    make_units(model, {.kind = UnitRuleKind::whole_model});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("child: expected")) << error.what();
  }
}

}  // namespace
}  // namespace tessera::parallel
