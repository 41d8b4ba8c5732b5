// SPDX-License-Identifier: Apache-2.0
// A generated kernel with tensor maps, from its text over a real cubin to a launch.
#include "templates/common/specialize.h"

#include "fake_test.h"

using namespace tilewright;
using namespace tilewright::test;

namespace {

struct Args {
  const void* data;
  std::int64_t rows;
};
struct Shape {
  std::int64_t cols;
};

Specialization mapped(std::uint32_t maps) {
  Specialization s;
  s.name = "own/mapped";
  s.includes = {"backends/cuda/sm90.cuh"};
  s.prelude = R"(namespace own {
struct Args { const void* data; tw::i64 rows; };
struct Shape { tw::i64 cols; };
struct Touch {
  static constexpr int kThreads = 64, kSharedBytes = 256;
  template <class... Maps> static TW_MEMBER void run(const Args&, const Shape&, Maps... maps) {
    (tw::prefetch_map(maps), ...);
  }
};
}  // namespace own
)";
  s.plan_type = "own::Touch";
  s.space = "own";
  s.plan.threads = 64;
  s.plan.shared_bytes = 256;
  s.plan.x = {1, 1, 0};
  s.plan.persistent = 1;
  s.plan.overlap = true;
  s.plan.map_count = maps;
  s.plan.maps.fill({.pointer = 0, .rows_at = 8, .inner = 64, .box_inner = 64, .box_rows = 8, .swizzle = 64});
  return s;
}

}  // namespace

TEST_CASE("specialize: a plan's maps are parameters of the kernel and of its body, after a prelude") {
  const std::string without = specialize(mapped(0)).text, one = specialize(mapped(1)).text;
  CHECK(without.find("#include \"backends/cuda/sm90.cuh\"\nnamespace own {") == 0);
  CHECK(without.find("}  // namespace own\nusing Plan = own::Touch;\n") != std::string::npos);
  CHECK(without.find("own::Shape shape) {\n  Plan::run(args, shape);\n") != std::string::npos);
  CHECK(one.find("own::Shape shape, TW_PARAM tw::TensorMap map0) {\n  Plan::run(args, shape, &map0);\n") !=
        std::string::npos);
  CHECK(specialize(mapped(2)).text.find(
            "map0, TW_PARAM tw::TensorMap map1) {\n  Plan::run(args, shape, &map0, &map1);\n") != std::string::npos);
}

TEST_CASE("specialize: a kernel with maps declares what a launch passes") {
  const Fake fake;
  const Device device = Fake::open();
  const jit::Memory data(device, 64 * 1000);
  static std::vector<std::size_t> sizes;
  static std::vector<FakeTensorMap> maps;
  static FakeLaunch last;
  fake_cuda_set_launch_handler(
      [](const FakeLaunch* launch, void*) {
        last = *launch;
        sizes.assign(launch->param_bytes, launch->param_bytes + launch->param_count);
        maps.clear();
        for (std::size_t i = 2; i < sizes.size(); ++i)
          std::memcpy(&maps.emplace_back(), launch->params[i], sizeof(FakeTensorMap));
      },
      nullptr);
  Contract contract;
  contract.args_bytes = sizeof(Args);
  contract.constants.resize(sizeof(Shape));
  const int first[] = {0};
  for (const std::uint32_t count : {0u, 1u, 2u}) {
    const Binary binary = compile(specialize(mapped(count)), sm_90a(), real_compiler());
    CHECK(binary.plan == mapped(count).plan);
    const Kernel kernel(device, {&binary, 1}, first, contract);
    const Args args{data.data(), 1000};
    kernel.launch(nullptr, bytes_of(args), 1000, 1);
    CHECK(last.grid[0] == 132);
    CHECK(last.overlap);
    std::vector<std::size_t> expected{sizeof(Args), sizeof(Shape)};
    expected.resize(2 + count, 128);
    CHECK(sizes == expected);
    REQUIRE(maps.size() == count);
    for (const FakeTensorMap& map : maps) {
      CHECK(map.magic == FakeTensorMap::kMagic);
      CHECK(map.size[1] == 1000);
    }
  }
}
