// SPDX-License-Identifier: Apache-2.0
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <thread>

#include "fake_test.h"
#include "jit/driver.h"
#include "tilewright/problem.h"

using namespace tilewright;
using namespace tilewright::test;

namespace {

struct Seen {
  int launches = 0;
  FakeLaunch last{};
  std::string entry;
  GemmArgs args{};
  std::uint64_t constant = 0;
};

void look(const FakeLaunch* launch, void* user) {
  auto& seen = *static_cast<Seen*>(user);
  ++seen.launches;
  seen.last = *launch;
  seen.entry = launch->entry;
  if (launch->param_count > 0 && launch->param_bytes[0] == sizeof(GemmArgs))
    std::memcpy(&seen.args, launch->params[0], sizeof(GemmArgs));
  if (launch->param_count > 1) std::memcpy(&seen.constant, launch->params[1], sizeof(seen.constant));
}

Contract gemm_contract() {
  Contract contract;
  contract.op = "gemm";
  contract.args_bytes = sizeof(GemmArgs);
  contract.pointers = {{"x.data", offsetof(GemmArgs, x), 16, true},
                       {"y", offsetof(GemmArgs, y), 16, true},
                       {"bias", offsetof(GemmArgs, bias), 16, false}};
  contract.strides = {{"ldx", offsetof(GemmArgs, ldx), 64, 32}, {"ldy", offsetof(GemmArgs, ldy), 96, 1}};
  contract.constants.resize(8, std::byte{7});
  contract.cols = 96;
  return contract;
}

Binary gemm_binary(const std::string& entry = "k") {
  Binary binary = fake_binary({sizeof(GemmArgs), 8}, entry);
  binary.plan = {.x = {1, 16, 0}, .y = {1, 0, 32}, .z = {2, 0, 0}, .threads = 256, .cluster = 1, .shared_bytes = 64};
  return binary;
}

// Device, a kernel with that contract, and arguments that satisfy it.
struct GemmCase : Fake {
  GemmCase() {
    fake_cuda_set_launch_handler(look, &seen);
    args.x.data = x.data();
    args.y = y.data();
    args.m = 33;
  }
  Error refused(ErrorCode code = ErrorCode::invalid_argument) {
    const int before = seen.launches;
    const auto error = error_of(code, [&] { kernel.launch(nullptr, args); });
    CHECK(seen.launches == before);
    return error;
  }
  static Kernel make(const Device& device) {
    const Binary binary = gemm_binary();
    const int first[] = {0};
    return Kernel(device, {&binary, 1}, first, gemm_contract());
  }

  Seen seen;
  Device device = open();
  jit::Memory x{device, 4096}, y{device, 4096};
  Kernel kernel = make(device);
  GemmArgs args;
};

}  // namespace

TEST_CASE("kernel: grid, block, arguments and constants arrive") {
  GemmCase t;
  t.kernel.launch(nullptr, t.args);
  REQUIRE(t.seen.launches == 1);
  CHECK(t.seen.last.grid[0] == 3);  // ceil(33 / 16)
  CHECK(t.seen.last.grid[1] == 3);  // 96 / 32
  CHECK(t.seen.last.grid[2] == 2);
  CHECK(t.seen.last.block[0] == 256);
  CHECK(t.seen.last.shared_bytes == 64);
  CHECK(t.seen.last.cluster == 1);
  CHECK(t.seen.args.x.data == t.x.data());
  CHECK(t.seen.args.m == 33);
  CHECK(t.seen.args.ldx == 64);  // dense, because it was 0
  CHECK(t.seen.args.ldy == 96);
  CHECK(t.args.ldx == 0);
  CHECK(t.seen.constant == 0x0707070707070707);
  t.args.ldx = 96;
  t.args.ldy = 97;
  t.kernel.launch(nullptr, t.args);
  CHECK(t.seen.args.ldx == 96);
  CHECK(t.seen.args.ldy == 97);
}

TEST_CASE("kernel: c is apart from y, or y itself") {
  GemmCase t;
  Contract contract = gemm_contract();
  contract.pointers.push_back({"c", offsetof(GemmArgs, c), 16, true});
  contract.strides.push_back({"ldc", offsetof(GemmArgs, ldc), 96, 1});
  const auto at = [](std::size_t pointer, std::size_t stride) {
    return MatrixRule{static_cast<std::uint32_t>(pointer), static_cast<std::uint32_t>(stride), 96, 2};
  };
  contract.overlap = OverlapRule{"c", "y", at(offsetof(GemmArgs, c), offsetof(GemmArgs, ldc)),
                                 at(offsetof(GemmArgs, y), offsetof(GemmArgs, ldy)), true};
  const int first[] = {0};
  const Binary binary = gemm_binary();
  const auto use = [&] { t.kernel = Kernel(t.device, {&binary, 1}, first, contract); };
  use();
  const jit::Memory space(t.device, 64 * 1024);
  char* const base = static_cast<char*>(space.data());
  constexpr std::int64_t kRow = 192, kRows = 33;  // bytes; gemm_contract() has 96 columns
  t.args.y = base + 8192;
  const auto with = [&](std::int64_t offset, std::int64_t ldc, std::int64_t ldy) {
    t.args.c = base + 8192 + offset, t.args.ldc = ldc, t.args.ldy = ldy;
  };
  const auto accepted = [&](std::int64_t offset, std::int64_t ldc, std::int64_t ldy) {
    with(offset, ldc, ldy);
    CHECK_NOTHROW(t.kernel.launch(nullptr, t.args));
  };
  const auto overlaps = [&](std::int64_t offset, std::int64_t ldc, std::int64_t ldy) {
    INFO(offset << ' ' << ldc << ' ' << ldy);
    with(offset, ldc, ldy);
    const Error e = t.refused();
    CHECK(e.field() == "c");
    CHECK(mentions(e, "overlap"));
  };
  accepted(0, 0, 0);  // in place
  CHECK(t.seen.args.ldc == 96);
  accepted(0, 200, 200);
  accepted(kRow * kRows, 0, 0), accepted(-kRow * kRows, 0, 0);
  accepted(kRow, 192, 192), accepted(-kRow, 192, 192);  // halves of rows of 192
  overlaps(0, 0, 200), overlaps(0, 200, 0);
  overlaps(kRow * kRows - 16, 0, 0), overlaps(16 - kRow * kRows, 0, 0);
  overlaps(16, 0, 0), overlaps(kRow, 0, 0);
  overlaps(kRow - 16, 192, 192), overlaps(kRow, 191, 191), overlaps(kRow, 192, 193);
  with(8, 0, 0);
  CHECK(mentions(t.refused(), "multiple of 16"));
  t.args.c = nullptr;
  CHECK(t.refused().field() == "c");
  with(kRow * kRows, 95, 0);
  CHECK(t.refused().field() == "ldc");
  contract.overlap->in_place = false;
  use();
  overlaps(0, 0, 0);
}

TEST_CASE("kernel: clusters are an attribute of the launch") {
  GemmCase t;
  Binary binary = fake_binary({8});
  binary.plan.x = {1, 1, 0};
  binary.plan.cluster = 4;
  const Kernel kernel(t.device, binary);
  const std::uint64_t argument = 1;
  kernel.launch(nullptr, bytes_of(argument), 8, 1);
  CHECK(t.seen.last.cluster == 4);
  const auto error = error_of(ErrorCode::driver_failed, [&] { kernel.launch(nullptr, bytes_of(argument), 9, 1); });
  CHECK(mentions(error, "cluster 4"));
  CHECK(mentions(error, "9 x 1 x 1 blocks"));
}

TEST_CASE("kernel: a persistent grid is as large as the device, in whole clusters") {
  GemmCase t;
  auto launched = [&](std::uint32_t persistent, std::uint32_t cluster, std::int64_t rows) {
    Binary binary = fake_binary({8});
    binary.plan.x = {cluster, 16, 0};
    binary.plan.y = {1, 0, 1};
    binary.plan.cluster = cluster;
    binary.plan.persistent = persistent;
    const std::uint64_t argument = 1;
    Kernel(t.device, binary).launch(nullptr, bytes_of(argument), rows, 3);
    CHECK(t.seen.last.grid[1] == 3);
    return t.seen.last.grid[0];
  };
  CHECK(launched(0, 1, 16 * 1000) == 1000);
  CHECK(launched(1, 1, 16 * 1000) == 132);
  CHECK(launched(2, 1, 16 * 1000) == 264);
  CHECK(launched(32, 1, 16 * 1000) == 1000);
  CHECK(launched(1, 1, 16 * 131) == 131);
  CHECK(launched(1, 1, 16 * 132) == 132);
  CHECK(launched(1, 1, 1) == 1);
  CHECK(launched(1, 8, 16 * 1000) == 128);
  CHECK(launched(1, 2, 1) == 2);
  const FakeDevice few = {"few", 9, 0, 3, 232448, 65536, 1 << 30, 1 << 20};
  fake_cuda_set_device(1, &few);
  Binary binary = fake_binary({8});
  binary.plan.x = {1, 1, 0};
  binary.plan.persistent = 1;
  const Device small = Fake::open(1);
  const std::uint64_t argument = 1;
  for (const auto& [cluster, rows, blocks] : {std::array<unsigned, 3>{2, 100, 2}, {4, 100, 4}, {2, 3, 2}, {2, 1, 2}}) {
    binary.plan.cluster = cluster;
    Kernel(small, binary).launch(nullptr, bytes_of(argument), rows, 1);
    CHECK(t.seen.last.grid[0] == blocks);
  }
  const int launches = t.seen.launches;
  Kernel(small, binary).launch(nullptr, bytes_of(argument), 0, 1);
  binary.plan.x = {0, 1, 0};
  Kernel(small, binary).launch(nullptr, bytes_of(argument), 5, 1);
  CHECK(t.seen.launches == launches);  // nothing is still nothing
}

TEST_CASE("kernel: overlap is an attribute of the launch, beside the cluster's") {
  GemmCase t;
  const std::uint64_t argument = 1;
  Binary binary = fake_binary({8});
  binary.plan.x = {4, 0, 0};
  for (const bool overlap : {false, true})
    for (const unsigned cluster : {1u, 2u}) {
      binary.plan.overlap = overlap;
      binary.plan.cluster = cluster;
      Kernel(t.device, binary).launch(nullptr, bytes_of(argument), 1, 1);
      CHECK(t.seen.last.overlap == overlap);
      CHECK(t.seen.last.cluster == cluster);
    }
}

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
    for (std::size_t i = 0; i < launch->param_count; ++i)
      if (launch->param_bytes[i] == 128) std::memcpy(&t.maps.emplace_back(), launch->params[i], sizeof(FakeTensorMap));
  }
  std::uint64_t address(const jit::Memory& memory) { return reinterpret_cast<std::uintptr_t>(memory.data()); }

  jit::Memory w{device, 96 * 64};
  std::vector<FakeTensorMap> maps;
};

}  // namespace

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
  CHECK(mentions(error, "panels of 16"));
  t.kernel = made({0, 64});
  CHECK(mentions(t.refused(ErrorCode::driver_failed), "0 rows of 64 elements"));
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
  for (const char* part : {"x.data = 0x", "3 rows of 64 elements of 2 bytes", "130 bytes from one", "16 x 64",
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

TEST_CASE("row 32: null, misaligned, host and foreign pointers are refused by name") {
  GemmCase t;
  const GemmArgs good = t.args;
  t.args.x.data = nullptr;
  CHECK(t.refused().field() == "x.data");
  t.args = good;
  for (const int off : {1, 2, 4, 8}) {
    t.args.y = static_cast<char*>(t.y.data()) + off;
    CHECK(mentions(t.refused(), "multiple of 16"));
  }
  t.args = good;
  alignas(16) char host[16];
  const Device other = Fake::open(1);
  const jit::Memory foreign(other, 64);
  t.kernel.check_pointers(true);
  t.args.bias = host;
  CHECK(mentions(t.refused(), "host pointer"));
  t.args.bias = foreign.data();
  CHECK(mentions(t.refused(), "device 1"));
  t.args = good;
  CHECK_NOTHROW(t.kernel.launch(nullptr, t.args));
  t.kernel.check_pointers(false);
  const long asked = fake_cuda_calls("cuPointerGetAttributes");
  CHECK_NOTHROW(t.kernel.launch(nullptr, t.args));
  CHECK(fake_cuda_calls("cuPointerGetAttributes") == asked);
}

TEST_CASE("row 31: rows and strides of a launch") {
  GemmCase t;
  for (const std::int64_t ld : {63, 32, -64, 65, 100}) {
    t.args.ldx = ld;
    CHECK(t.refused().field() == "ldx");
  }
  t.args.ldx = 0;
  t.args.ldy = 95;
  CHECK(mentions(t.refused(), "at least 96"));
  t.args.ldy = 0;
  t.args.m = -1;
  CHECK(t.refused().field() == "m");
  for (const std::int64_t m : {std::int64_t{1} << 36, std::int64_t{0x7fffffffffffffff}}) {
    t.args.m = m;
    CHECK(t.refused(ErrorCode::too_large).field() == "grid.x");
  }
  t.args = {};  // null pointers, but nothing to do
  t.kernel.launch(nullptr, t.args);
  CHECK(t.seen.launches == 0);
}

TEST_CASE("kernel: the argument struct must be the operation's") {
  GemmCase t;
  CastArgs cast;
  cast.rows = 1;
  CHECK(mentions(error_of(ErrorCode::invalid_argument, [&] { t.kernel.launch(nullptr, cast); }), "gemm"));
  const Kernel own(t.device, fake_binary({8}));
  CHECK(mentions(error_of(ErrorCode::invalid_argument, [&] { own.launch(nullptr, t.args); }), "GemmArgs"));
  const std::uint32_t small = 1;
  CHECK(
      mentions(error_of(ErrorCode::invalid_argument, [&] { own.launch(nullptr, bytes_of(small), 1, 1); }), "8 bytes"));
}

TEST_CASE("kernel: every bucket finds its binary, or the nearest") {
  const Fake fake;
  const Device device = Fake::open();
  Seen seen;
  fake_cuda_set_launch_handler(look, &seen);
  std::vector<Binary> binaries;
  for (int i = 0; i < 3; ++i) {
    binaries.push_back(fake_binary({sizeof(GemmArgs)}, "k" + std::to_string(i)));
    binaries.back().plan.threads = 32 * (i + 1);
  }
  std::vector<int> table(kBucketCount, -1);
  table[bucket_index(4)] = 0;
  table[bucket_index(64)] = 1;
  table[bucket_index(1024)] = 2;
  const Kernel kernel(device, binaries, table, {});
  auto served = [&](std::int64_t rows) {
    GemmArgs args;
    kernel.launch(nullptr, bytes_of(args), rows, 1);
    CHECK(kernel.plan(rows).threads == seen.last.block[0]);
    return seen.entry;
  };
  for (const std::int64_t rows : {1, 2, 3, 4}) CHECK(served(rows) == "k0");
  for (const std::int64_t rows : {5, 8, 9, 33, 64}) CHECK(served(rows) == "k1");
  for (const std::int64_t rows : {65, 1000, 1024, 1025, 4096, 1000000}) CHECK(served(rows) == "k2");
}

TEST_CASE("row 34: a launch is legal under stream capture") {
  GemmCase t;
  const jit::OwnedStream stream(t.device);
  const jit::Graph graph(t.device, stream, [&](Stream s) { t.kernel.launch(s, t.args); });
  t.args = {};  // the graph keeps its own copy
  graph.launch(stream.get());
  CHECK(t.seen.launches == 1);
  CHECK(t.seen.args.m == 33);
}

TEST_CASE("kernel: launches under any current context and gives it back") {
  GemmCase t;
  const Device other = Fake::open(1);
  for (const int current : {-1, 0, 1}) {
    if (current >= 0) fake_cuda_push_context(current);
    const long pushes = fake_cuda_calls("cuCtxPushCurrent");
    CHECK_NOTHROW(t.kernel.launch(nullptr, t.args));
    CHECK(fake_cuda_calls("cuCtxPushCurrent") - pushes == (current == 0 ? 0 : 1));
    CHECK(fake_cuda_current_device() == current);
    if (current >= 0) fake_cuda_pop_context();
  }
}

TEST_CASE("row 22: a fault shows at the next call and is known to be sticky") {
  const Fake fake;
  const Device device = Fake::open();
  const Kernel kernel(device, fake_binary({}));
  fake_cuda_set_launch_handler([](const FakeLaunch* l, void*) { fake_cuda_fault(l->device, 700); }, nullptr);
  kernel.launch(nullptr, {}, 1, 1);
  CHECK(jit::is_sticky(error_of(ErrorCode::driver_failed, [&] { device.synchronize(); })));
  error_of(ErrorCode::driver_failed, [&] { kernel.launch(nullptr, {}, 1, 1); });
  fake_cuda_reset_device(0);  // the only way out
}

TEST_CASE("row 35: a kernel of a device that was reset gives an error") {
  GemmCase t;
  fake_cuda_reset_device(0);
  CHECK(mentions(t.refused(ErrorCode::driver_failed), "reset"));
  const Device again = Fake::open();
  CHECK(mentions(t.refused(ErrorCode::driver_failed), "reset"));
  const jit::Memory x(again, 4096), y(again, 4096);
  t.args.x.data = x.data();
  t.args.y = y.data();
  CHECK_NOTHROW(GemmCase::make(again).launch(nullptr, t.args));
  t.kernel = GemmCase::make(again);  // drops the stale one: no driver call with a dead handle
}

TEST_CASE("row 35: sixteen threads, one kernel, two devices, copies that come and go") {
  const Fake fake;
  static std::atomic<int> runs;
  runs = 0;
  fake_cuda_set_launch_handler([](const FakeLaunch*, void*) { ++runs; }, nullptr);
  const Device devices[] = {Fake::open(0), Fake::open(1)};
  const Kernel kernels[] = {GemmCase::make(devices[0]), GemmCase::make(devices[1])};
  const jit::Memory memory[] = {jit::Memory(devices[0], 4096), jit::Memory(devices[1], 4096)};
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 16; ++t)
    threads.emplace_back([&, t] {
      try {
        for (int i = 0; i < 50; ++i) {
          const int d = (t + i) % 2;
          const jit::OwnedStream stream(devices[d]);
          Kernel copy = i % 5 ? kernels[d] : GemmCase::make(devices[d]);
          copy.check_pointers(i % 3 == 0);
          GemmArgs args;
          args.x.data = args.y = memory[d].data();
          args.m = 1 + i * t;
          copy.launch(i % 2 ? stream.get() : nullptr, args);
          stream.synchronize();
        }
      } catch (const std::exception&) {
        ++failed;
      }
    });
  for (auto& thread : threads) thread.join();
  CHECK(failed == 0);
  CHECK(runs == 800);
}

TEST_CASE("row 19: a kernel in a child of fork()") {
  GemmCase t;
  const pid_t child = fork();
  if (child == 0) {
    int code = 1;
    try {
      t.kernel.launch(nullptr, t.args);
    } catch (const Error& error) {
      code = error.code() == ErrorCode::forked ? 0 : 2;
    }
    _exit(code + (fake_cuda_calls("cuLaunchKernelEx") ? 4 : 0));
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK_NOTHROW(t.kernel.launch(nullptr, t.args));
}

TEST_CASE("kernel: a driver that is already shutting down is tolerated") {
  const Fake fake;
  {
    const Device device = Fake::open();
    const Kernel kernel(device, fake_binary({8}));
    fake_cuda_fail("cuModuleUnload", 0, 4);
    fake_cuda_fail("cuDevicePrimaryCtxRelease", 0, 4);
  }
  CHECK(fake_cuda_calls("cuModuleUnload") == 1);
  fake_cuda_reset();
}
