// SPDX-License-Identifier: Apache-2.0
// Tensor maps: what a launch encodes from its plan and arguments, and what of it the driver refuses.
#include <cstring>
#include <vector>

#include "kernel_test.h"

using namespace tilewright;
using namespace tilewright::test;

namespace {

// x: m rows of 64 16-bit elements, ldx apart. w: 96 dense rows of 64 bytes.
Binary map_binary() {
  Binary binary = gemm_binary();
  binary.image = make_image("k", 90, {sizeof(GemmArgs), 8, 128, 128});
  binary.plan.map_count = 2;
  binary.plan.maps[0] = {.pointer = offsetof(GemmArgs, x),
                         .rows_at = offsetof(GemmArgs, m),
                         .stride_at = offsetof(GemmArgs, ldx),
                         .inner = 64,
                         .element_bytes = 2,
                         .box_inner = 64,
                         .box_rows = 16,
                         .swizzle = 128};
  binary.plan.maps[1] = {.pointer = offsetof(GemmArgs, w), .rows = 96, .inner = 64, .box_inner = 64, .box_rows = 32};
  return binary;
}

struct MapCase : GemmCase {
  MapCase() {
    fake_cuda_set_launch_handler(look_at_maps, this);
    kernel = make(map_binary());
    args.w.data = w.data();
    args.m = 3;
  }
  Kernel make(const Binary& binary, Contract contract = gemm_contract()) {
    const int first[] = {0};
    return Kernel(device, {&binary, 1}, first, std::move(contract));
  }
  static void look_at_maps(const FakeLaunch* launch, void* user) {
    auto& t = *static_cast<MapCase*>(user);
    look(launch, &t.seen);
    t.maps.clear();
    for (std::size_t i = 1; i < launch->param_count; ++i)  // behind the arguments
      if (launch->param_bytes[i] == 128) std::memcpy(&t.maps.emplace_back(), launch->params[i], sizeof(FakeTensorMap));
  }
  std::uint64_t address(const jit::Memory& memory) { return reinterpret_cast<std::uintptr_t>(memory.data()); }

  jit::Memory w{device, 96 * 64};
  std::vector<FakeTensorMap> maps;
};

}  // namespace

TEST_CASE("kernel: a tensor map's rows are a multiple of an argument") {
  MapCase t;
  Binary binary = map_binary();
  binary.plan.maps[0].rows = 7;
  t.kernel = t.make(binary);
  t.kernel.launch(nullptr, t.args);
  REQUIRE(t.maps.size() == 2);
  CHECK(t.maps[0].size[1] == 21);
  CHECK(t.maps[1].size[1] == 96);
  binary.plan.maps[0].rows = 65537;
  CHECK(error_of(ErrorCode::invalid_argument, [&] { t.make(binary); }).field() == "plan.maps[0].rows");
}

TEST_CASE("kernel: a tensor map begins behind a pointer") {
  MapCase t;
  Binary binary = map_binary();
  binary.plan.maps[0].behind = 48;
  t.kernel = t.make(binary);
  t.kernel.launch(nullptr, t.args);
  REQUIRE(t.maps.size() == 2);
  CHECK(t.maps[0].address == t.address(t.x) + 48);
  CHECK(t.maps[1].address == t.address(t.w));
}

TEST_CASE("kernel: tensor maps follow the arguments and constants, made of that call's arguments") {
  MapCase t;
  t.kernel.launch(nullptr, t.args);
  REQUIRE(t.maps.size() == 2);
  CHECK(t.seen.args.m == 3);
  CHECK(t.seen.constant == 0x0707070707070707);
  const FakeTensorMap &x = t.maps[0], &w = t.maps[1];
  CHECK(x.magic == FakeTensorMap::kMagic);
  CHECK(x.address == t.address(t.x));
  CHECK(x.size[0] == 64);
  CHECK(x.size[1] == 3);
  CHECK(x.stride[0] == 128);  // dense: ldx was 0
  CHECK(x.box[0] == 64);
  CHECK(x.box[1] == 16);
  CHECK(x.type == 1);     // 16-bit
  CHECK(x.swizzle == 3);  // 128 bytes
  CHECK(x.promotion == 3);
  CHECK(w.address == t.address(t.w));
  CHECK(w.size[0] == 64);
  CHECK(w.size[1] == 96);
  CHECK(w.stride[0] == 64);
  CHECK(w.box[1] == 32);
  CHECK(w.type == 0);
  CHECK(w.swizzle == 0);
  CHECK(fake_cuda_calls("cuTensorMapEncodeTiled") == 2);
  t.args.m = 5;
  t.args.ldx = 96;
  t.args.x.data = static_cast<char*>(t.x.data()) + 16;
  t.kernel.launch(nullptr, t.args);
  CHECK(x.size[1] == 5);
  CHECK(x.stride[0] == 192);
  CHECK(x.address == t.address(t.x) + 16);
  CHECK(w.size[1] == 96);
  t.args.m = 0;
  t.kernel.launch(nullptr, t.args);
  CHECK(fake_cuda_calls("cuTensorMapEncodeTiled") == 4);
}

TEST_CASE("kernel: every element and swizzle has its number; a map without constants, and of a caller's own struct") {
  MapCase t;
  Contract contract = gemm_contract();
  contract.constants.clear();
  Binary binary = map_binary();
  binary.image = make_image("k", 90, {sizeof(GemmArgs), 128});
  binary.plan.map_count = 1;
  int number = 0;
  for (const std::uint32_t bytes : {1, 2, 4}) {
    binary.plan.maps[0].element_bytes = bytes;
    binary.plan.maps[0].box_inner = 32 / bytes;
    for (const std::uint32_t swizzle : {0, 32, 64, 128}) {
      binary.plan.maps[0].swizzle = swizzle;
      t.make(binary, contract).launch(nullptr, t.args);
      REQUIRE(t.maps.size() == 1);
      CHECK(t.maps[0].type == number / 4);
      CHECK(t.maps[0].swizzle == number % 4);
      CHECK(t.maps[0].stride[0] == 64 * bytes);
      ++number;
    }
  }
  struct Own {
    std::int64_t rows, stride;
    void* data;
  } own{7, 80, t.x.data()};
  binary.image = make_image("k", 90, {sizeof(Own), 128});
  binary.plan.maps[0] = {.pointer = offsetof(Own, data),
                         .rows_at = offsetof(Own, rows),
                         .stride_at = offsetof(Own, stride),
                         .inner = 64,
                         .box_inner = 16,
                         .box_rows = 1};
  Kernel(t.device, binary).launch(nullptr, bytes_of(own), 1, 96);
  REQUIRE(t.maps.size() == 1);
  CHECK(t.maps[0].size[1] == 7);
  CHECK(t.maps[0].stride[0] == 80);
}

TEST_CASE("kernel: a map of panels, with its sizes among the constants") {
  MapCase t;
  struct Shape {
    std::int64_t n, k;
  };
  Contract contract = gemm_contract();
  auto made = [&](Shape shape) {
    contract.constants.assign(bytes_of(shape).begin(), bytes_of(shape).end());
    Binary binary = map_binary();
    binary.image = make_image("k", 90, {sizeof(GemmArgs), sizeof(Shape), 128, 128});
    for (TensorMapPlan& map : binary.plan.maps) {
      map.inner_at = TensorMapPlan::kConstants + offsetof(Shape, k);
      map.inner = 0;
      map.element_bytes = 2;
      map.box_inner = 16;
      map.box_panels = 2;
      map.swizzle = 32;
    }
    binary.plan.maps[1].rows_at = TensorMapPlan::kConstants + offsetof(Shape, n);
    binary.plan.maps[1].rows = 0;
    return t.make(binary, contract);
  };
  t.kernel = made({24, 64});
  t.args.ldx = 96;
  t.kernel.launch(nullptr, t.args);
  REQUIRE(t.maps.size() == 2);
  for (const FakeTensorMap& map : t.maps) {
    CHECK(map.rank == 3);
    CHECK(map.size[0] == 16);
    CHECK(map.size[2] == 4);
    CHECK(map.stride[1] == 32);
    CHECK(map.box[0] == 16);
    CHECK(map.box[2] == 2);
    CHECK(map.swizzle == 1);
  }
  CHECK(t.maps[0].size[1] == 3);
  CHECK(t.maps[0].stride[0] == 192);
  CHECK(t.maps[0].box[1] == 16);
  CHECK(t.maps[1].size[1] == 24);
  CHECK(t.maps[1].stride[0] == 128);  // dense
  CHECK(t.maps[1].box[1] == 32);
  t.kernel = made({24, 40});
  const auto error = t.refused();
  CHECK(error.field() == "x.data");
  CHECK(mentions(error, "40"));
  CHECK(mentions(error, "multiples of 16"));
  t.kernel = made({0, 64});
  CHECK(mentions(t.refused(ErrorCode::driver_failed), "extents 16 x 0 x 4"));
}

TEST_CASE("kernel: boxes end where a matrix of fewer rows than a tile does") {
  MapCase t;
  Binary binary = map_binary();
  TensorMapPlan& map = binary.plan.maps[0];
  map.inner = 64, map.box_inner = 32, map.box_rows = 16, map.box_panels = 2, map.tile_boxes = 2;
  t.kernel = t.make(binary, gemm_contract());
  struct {
    std::int64_t rows;
    unsigned box_rows, panels;
  } const cases[] = {{1, 8, 1}, {3, 8, 1}, {16, 8, 1}, {17, 16, 2}, {32, 16, 2}};
  for (const auto& c : cases) {
    t.args.m = c.rows;
    t.kernel.launch(nullptr, t.args);
    INFO(c.rows << " rows");
    REQUIRE(t.maps.size() == 2);
    CHECK(t.maps[0].box[1] == c.box_rows);
    CHECK(t.maps[0].box[2] == c.panels);
    CHECK(t.maps[1].box[1] == 32);
  }
}

TEST_CASE("kernel: a map of rows that are blocks of a coded format") {
  MapCase t;
  Contract contract = gemm_contract();
  const std::int64_t k = 64;
  contract.constants.assign(bytes_of(k).begin(), bytes_of(k).end());
  Binary binary = map_binary();
  TensorMapPlan& map = binary.plan.maps[0];
  map.inner_at = TensorMapPlan::kConstants;  // 32 elements as six words
  map.block = 32, map.block_elements = 6;
  map.element_bytes = 4, map.box_inner = 12, map.box_panels = 1, map.swizzle = 0;
  t.kernel = t.make(binary, contract);
  t.kernel.launch(nullptr, t.args);
  REQUIRE(t.maps.size() == 2);
  CHECK(t.maps[0].size[0] == 12);
  CHECK(t.maps[0].size[2] == 1);
  CHECK(t.maps[0].stride[0] == 48);
  t.args.ldx = 128;
  t.kernel.launch(nullptr, t.args);
  CHECK(t.maps[0].stride[0] == 96);
}

TEST_CASE("kernel: a map of a tensor, whose axes are among the constants") {
  MapCase t;
  struct Axes {
    std::int64_t unused, extent[4][2];
  } axes{0, {{5, 48}, {3, 240}, {2, 720}, {1, 1440}}};
  Contract contract = gemm_contract();
  contract.constants.assign(bytes_of(axes).begin(), bytes_of(axes).end());
  Binary binary = map_binary();
  binary.image = make_image("k", 90, {sizeof(GemmArgs), sizeof(Axes), 128, 128});
  TensorMapPlan& map = binary.plan.maps[0];
  map = {.pointer = offsetof(GemmArgs, x), .inner = 48, .element_bytes = 2, .box_inner = 16, .swizzle = 32};
  map.axes = 4, map.axes_at = offsetof(Axes, extent), map.box_axes = {4, 2, 1, 1}, map.steps = {1, 2, 1, 1};
  const Binary with_axes = binary;
  t.kernel = t.make(binary, contract);
  t.kernel.launch(nullptr, t.args);
  REQUIRE(t.maps.size() == 2);
  CHECK(t.maps[0].rank == 5);
  const std::uint64_t sizes[] = {48, 5, 3, 2, 1}, strides[] = {96, 480, 1440, 2880};
  const unsigned boxes[] = {16, 4, 3, 1, 1}, steps[] = {1, 1, 2, 1, 1};
  for (int i = 0; i < 5; ++i) {
    CHECK(t.maps[0].size[i] == sizes[i]);
    CHECK(t.maps[0].box[i] == boxes[i]);
    CHECK(t.maps[0].step[i] == steps[i]);
    if (i < 4) CHECK(t.maps[0].stride[i] == strides[i]);
  }
  map.axes_at = offsetof(Axes, extent) + 8;
  CHECK(error_of(ErrorCode::invalid_argument, [&] { t.make(binary, contract); }).field() == "plan.maps[0].axes_at");
  map.axes_at = offsetof(Axes, unused), map.axes = 5;  // as many lie beyond the constants
  CHECK(error_of(ErrorCode::invalid_argument, [&] { t.make(binary, contract); }).field() == "plan.maps[0].axes_at");
  binary = with_axes;
  map.box_axes[1] = 129;
  CHECK(error_of(ErrorCode::invalid_argument, [&] { t.make(binary, contract); }).field() == "plan.maps[0].box_axes");
  map.box_axes[1] = 1, map.steps[1] = 9;
  CHECK(error_of(ErrorCode::invalid_argument, [&] { t.make(binary, contract); }).field() == "plan.maps[0].steps");
}

TEST_CASE("kernel: a captured launch keeps its maps") {
  MapCase t;
  const jit::OwnedStream stream(t.device);
  const jit::Graph graph(t.device, stream, [&](Stream s) { t.kernel.launch(s, t.args); });
  t.args.m = 9;
  graph.launch(stream.get());
  REQUIRE(t.maps.size() == 2);
  CHECK(t.maps[0].size[1] == 3);
}

TEST_CASE("kernel: a map that the driver refuses is named with its sizes") {
  MapCase t;
  Contract contract = gemm_contract();
  contract.strides[0].multiple = 1;
  contract.pointers[0].align = 1;
  t.kernel = t.make(map_binary(), contract);
  const GemmArgs good = t.args;
  t.args.ldx = 65;
  const auto error = t.refused(ErrorCode::driver_failed);
  CHECK(error.field() == "cuTensorMapEncodeTiled");
  for (const char* part : {"x.data at 0x", "elements of 2 bytes", "extents 64 x 3", "130 bytes from one", "64 x 16",
                           "swizzle 128", "INVALID_VALUE", "multiples of 16"}) {
    INFO(error.what());
    CHECK(mentions(error, part));
  }
  // None wraps around to something that the driver would take.
  for (const std::int64_t ld : {std::int64_t{1} << 39, std::int64_t{1} << 62, std::int64_t{0x7ffffffffffffff8}}) {
    t.args.ldx = ld;
    t.refused(ErrorCode::driver_failed);
  }
  t.args = good;
  t.args.x.data = static_cast<char*>(t.x.data()) + 8;
  CHECK(mentions(t.refused(ErrorCode::driver_failed), "x.data"));
  t.args = good;
  t.args.w.data = nullptr;  // no rule of that contract says anything about it
  CHECK(mentions(t.refused(ErrorCode::driver_failed), "the pointer at 24"));
  t.args = good;
  CHECK_NOTHROW(t.kernel.launch(nullptr, t.args));
}
