// SPDX-License-Identifier: Apache-2.0
// Source: a kernel written out, with everything needed to compile and launch it. LaunchPlan: its launch metadata.
// Values, usable from any thread. A Source may be written by hand: that is how a caller's own kernel enters the
// library.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tilewright {

// blocks = fixed * ceil(rows / per_rows) * ceil(cols / per_cols); a divisor of 0 leaves its factor out.
struct GridAxis {
  std::uint32_t fixed = 1;
  std::uint32_t per_rows = 0;
  std::uint32_t per_cols = 0;
  std::uint64_t blocks(std::int64_t rows, std::int64_t cols) const {
    std::uint64_t b = fixed;
    if (per_rows) b *= (static_cast<std::uint64_t>(rows) + per_rows - 1) / per_rows;
    if (per_cols) b *= (static_cast<std::uint64_t>(cols) + per_cols - 1) / per_cols;
    return b;
  }
  friend bool operator==(const GridAxis&, const GridAxis&) = default;
};

// A matrix as the tensor copy engine (TMA) reads it, in boxes of box_rows x box_inner elements. Every launch encodes
// one from that call's pointer, rows and stride. What a box has beyond the matrix arrives as zero. Without panels the
// map is of rank 2: {element of the row, row}. With them, of rank 3: rows are cut into panels of box_inner elements,
// whole ones only, coordinates are {0, row, panel}, and a box lands panel by panel.
struct TensorMapPlan {
  static constexpr std::uint32_t kNone = 0xffffffff;
  static constexpr std::uint32_t kConstants = 0x80000000;  // kConstants + offset: a field of the constants (Contract)
  std::uint32_t pointer = 0;        // offset in the argument struct of the pointer to the first row, 16-byte aligned
  std::uint64_t behind = 0;         // bytes from there to the first row: a multiple of 16
  std::uint32_t rows_at = kNone;    // offset of an int64 count of rows; kNone: `rows`
  std::uint64_t rows = 0;           // with rows_at: a factor of the count; 0 is 1
  std::uint32_t stride_at = kNone;  // offset of an int64 stride in elements (0 means what its StrideRule says); its
                                    // bytes are a multiple of 16. kNone: rows are dense
  std::uint32_t inner_at = kNone;   // offset of an int64 count of the elements of a row; kNone: `inner`
  std::uint64_t inner = 0;          // contiguous
  // Where rows are blocks of a coded format, what inner_at and stride_at find counts the format's elements, of which
  // `block` are stored as `block_elements` of the map's. A row is whole blocks.
  std::uint32_t block = 1, block_elements = 1;
  std::uint32_t element_bytes = 1;  // 1, 2 or 4
  std::uint32_t box_inner = 0;      // elements, at most 256: a multiple of 16 bytes, at most `swizzle` of them
  std::uint32_t box_rows = 0;       // at most 256
  std::uint32_t box_panels = 0;     // at most 256; 0: no panels
  // Boxes below each other that a kernel's tile has. Where a matrix has fewer rows than a tile, boxes have as few as it
  // takes, in whole eights, and one panel each (clipped_rows()): the copy engine takes several times as long for a row
  // beyond the matrix as for one of it. 0: boxes are always alike.
  std::uint32_t tile_boxes = 0;
  std::uint32_t swizzle = 0;  // bytes: 0 (none), 32, 64 or 128
  // A tensor instead of a matrix: of rank 1 + axes, whose coordinates are {element of a row, places on the axes}. At
  // offset axes_at of the constants are two int64 for each axis: its extent, and elements from one place to the next.
  // What describes rows and panels is not used. A box has box_axes places of each axis, every steps-th one.
  std::uint32_t axes = 0;  // 0: a matrix; else at most 4
  std::uint32_t axes_at = 0;
  std::array<std::uint32_t, 4> box_axes = {};  // at most 256
  std::array<std::uint32_t, 4> steps = {};     // at most 8; those of a box span at most 256 places
  std::uint32_t clipped_rows(std::uint64_t there) const {
    if (tile_boxes == 0 || there >= std::uint64_t{tile_boxes} * box_rows) return box_rows;
    const std::uint64_t each = (there + tile_boxes - 1) / tile_boxes;
    return std::min(static_cast<std::uint32_t>(std::max(each, std::uint64_t{1}) + 7) / 8 * 8, box_rows);
  }
  friend bool operator==(const TensorMapPlan&, const TensorMapPlan&) = default;
};

// How a CPU's kernel is launched: threads claim its blocks.
struct CpuLaunch {
  static constexpr int kUnit = 64;  // bytes: scratch memory is counted in these, and aligned to them
  GridAxis blocks;
  GridAxis first_blocks = {0};  // of its first phase, all complete before the others begin; 0: it has none
  GridAxis scratch = {0};       // units of memory that all blocks of a launch share (CpuKernel)
  // Of a kernel whose launch is several in one (CpuKernel::parts): how many. `scratch` is then for all CpuPart and
  // their arguments, and `blocks` some number of blocks that such a launch has.
  std::uint32_t parts = 0;
  bool needs_amx = false;  // the process asks the system for AMX's registers before it is loaded
  friend bool operator==(const CpuLaunch&, const CpuLaunch&) = default;
};

struct LaunchPlan {
  GridAxis x, y, z;
  std::uint32_t threads = 0;       // per block, one-dimensional
  std::uint32_t cluster = 1;       // blocks per cluster along x
  std::uint32_t shared_bytes = 0;  // dynamic
  // Blocks per multiprocessor of a kernel that loops over what its grid leaves out along x (see resident()); 0: a block
  // for every place of the grid.
  std::uint32_t persistent = 0;
  // May begin while the kernel before it in the stream ends: it waits itself (griddepcontrol.wait) before it reads what
  // that one wrote. Needs a target with clusters.
  bool overlap = false;
  // Rows that one launch takes, at most (0: any number), where the contract says how rows are passed (RowsRule): more
  // are several launches, one behind the other.
  std::uint32_t most_rows = 0;
  // On a CPU instead of everything above but most_rows. Of a kernel of a caller's own that has none, x counts the
  // blocks.
  std::optional<CpuLaunch> cpu = {};
  // Parameters after the arguments and the constants: `const __grid_constant__ CUtensorMap`, one for each of the first
  // map_count. The rest stay as they are. Needs a target with tma.
  std::uint32_t map_count = 0;
  std::array<TensorMapPlan, 3> maps = {};

  // The blocks along x that are launched for a grid of `blocks` on a device of `sms` multiprocessors.
  std::uint64_t resident(std::uint64_t blocks, int sms) const {
    if (persistent == 0 || blocks == 0) return blocks;
    const std::uint64_t most = std::uint64_t{persistent} * static_cast<std::uint32_t>(sms);
    const std::uint64_t per_cluster = std::max(cluster, 1u);
    return std::max(std::min(blocks, most) / per_cluster, std::uint64_t{1}) * per_cluster;
  }
  friend bool operator==(const LaunchPlan&, const LaunchPlan&) = default;
};

// Text that copies share: the sources of one problem have the same headers, some 200 KB of them.
class SharedText {
 public:
  SharedText() = default;
  SharedText(std::string text) : owner_(std::make_shared<const std::string>(std::move(text))), text_(*owner_) {}
  SharedText(const char* text) : SharedText(std::string(text)) {}
  // Copies nothing: `text` must outlive every copy and be followed by a zero byte, as literals are.
  static SharedText of_static(std::string_view text) {
    SharedText shared;
    shared.text_ = text;
    return shared;
  }
  // No moves: one that was moved from would point at text it does not own.
  SharedText(const SharedText&) = default;
  SharedText& operator=(const SharedText&) = default;

  std::string_view view() const { return text_; }
  const char* c_str() const { return text_.data(); }
  operator std::string_view() const { return text_; }
  friend bool operator==(const SharedText& a, const SharedText& b) {
    return (a.text_.data() == b.text_.data() && a.text_.size() == b.text_.size()) || a.text_ == b.text_;
  }

 private:
  std::shared_ptr<const std::string> owner_;
  std::string_view text_ = "";
};

struct Header {
  std::string name = {};  // as written in #include "..."
  SharedText text = {};
};

// An option for text that needs none of the CUDA runtime's types and functions: 6 to 9 % less to compile. compile()
// leaves it out for an NVRTC before 12.4, which does not know it.
inline constexpr const char* kMinimal = "--minimal";

// A block of a CPU's kernel: the launch's arguments, the contract's constants, scratch memory that all blocks of the
// launch share (64-byte aligned, of unknown content), and the number of the block. What compile() makes for a CPU has
// this signature too; its first phase, if there is one, is the function whose name is the entry's with "_first" behind.
using CpuFunction = void(const void* args, const void* constants, void* scratch, std::int64_t block);
// A kernel as a function of this process.
struct CpuKernel {
  std::function<CpuFunction> first = {}, run = {};
  // Of a kernel whose launch is several in one (compiled: "_parts"): called once, before all else, it writes a CpuPart
  // for each to `scratch`, evenly apart, with the part's arguments behind. Blocks of all parts are computed at once.
  std::function<CpuFunction> parts = {};
};
// What a launch of such a kernel would have as its axes (LaunchPlan), each counted in blocks from 0 on.
struct CpuPart {
  std::int64_t blocks = 0, first_blocks = 0;
  std::int64_t scratch = 0;  // units of 64 bytes
  std::int64_t own[5] = {};  // for the function that writes parts
};

struct Source {
  std::string name = {};  // for messages: "gemm/mma"
  std::string text = {};
  std::vector<Header> headers = {};       // all that `text` may include, in any order; nothing is read from disk
  std::string entry = {};                 // an extern "C" __global__ function
  std::vector<std::string> options = {};  // NVRTC options beyond the library's own (architecture, standard, cache off)
  LaunchPlan plan = {};
  // For a CPU `text` is LLVM IR, and `entry` a function of it. `host` is the same kernel as this library was built
  // with: what runs where no LLVM is, and, if there is no text, everywhere.
  std::shared_ptr<const CpuKernel> host = {};
};

}  // namespace tilewright
