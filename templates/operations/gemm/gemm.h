// SPDX-License-Identifier: Apache-2.0
// The operation gemm, its kernel families and what they share on the host.
#pragma once

#include <tilewright/gemm.h>
#include <tilewright/operation.h>

#include "templates/common/knobs.h"
#include "templates/common/specialize.h"

namespace tilewright::gemm {

const Operation& operation();

// A family whose kernels another operation's can be made of.
class ReusableFamily : public EnumeratedFamily {
 public:
  // What source() writes out. Precondition: illegal() is empty.
  virtual Specialization specialization(const Problem& problem, const Arch& arch, const Candidate& candidate) const = 0;
};

const ReusableFamily& wgmma();  // Hopper's warpgroup matrix units; coded weights as tiles
const Family& wgmma_codes();    // the same, codes by codes with exact sums of groups
const ReusableFamily& mma();    // matrix units through mma.sync, sm_75 and up
// The same of f32 by f32, as sums of TF32 numbers, from sm_80 on: for operations that gather x, none of gemm's own.
const ReusableFamily& mma_floats();
const ReusableFamily& gemv();  // few rows: bandwidth first
const Family& reference();     // any pair of formats

Contract contract(const Gemm& gemm);
void describe(const Gemm& gemm, Task& task);  // Operation::describe(), run_on_host(), check_on_host()
void run_on_host(const Gemm& gemm, const Task& task, std::span<const std::span<std::byte>> buffers);
HostCheck check_on_host(const Gemm& gemm, const Task& task, std::span<const std::span<std::byte>> buffers);

// Operation::recommended(): weights in tiles, constant weights, a workspace.
std::vector<Recommendation> recommended(const Problem& problem, const Arch& arch);

// Names of Activation's values, in the text of problems and in templates (tw::gemm::Act).
inline constexpr const char* kActivations[] = {"none", "relu", "gelu", "gelu_tanh", "silu"};

// Throw Error for what an operation with a gemm's epilogue and operands cannot have. addend: what g.c is called there.
void check_epilogue(const Gemm& g, const char* addend);
void check_global(const Gemm& g);
void check_accumulation(const Gemm& g);

// Throws Error unless weights can be reordered for `x`. `field`, `value`: what asks for it. n_field, k_field: what the
// operation calls, or makes, their extents of.
void check_tiles(const char* field, std::string value, Format w, Format x, std::int64_t n, std::int64_t k,
                 const char* n_field = "n", const char* k_field = "k");
// Adds the pointers of a stored operand at `offset` of a launch's arguments; those of w, packed or not as g says.
void add_operand(Contract& c, const char* const (&names)[3], std::size_t offset, Format f);
void add_weights(Contract& c, const Gemm& g, std::size_t offset);
// w among a task's buffers, packed or not. Precondition: no groups.
Matrix add_weights(Task& task, const Gemm& g);
// The problem with pack=tiles, if w can be and is not yet; and how it is packed.
std::optional<Gemm> packable(const Gemm& g);
std::optional<Repack> repack(const Gemm& g);
double w_bytes(const Gemm& gemm);  // of w, packed or not as the problem says

// Why no kernel that reads w as its format stores it serves the problem; empty if some may.
std::string not_plain(const Problem& problem);

// Codes by codes on Hopper. x's blocks are of kGroup signed bytes, and its rows whole pieces for the copy engine, as
// which kPieceK columns of them lie in shared memory as they are stored.
inline constexpr int kGroup = 32, kPieceK = 128;
bool blocks_of_bytes(Format x);
TensorMapPlan blocks_map(Format x, int rows, int pieces);

// Why a kernel of one w does not serve the problem; empty if it may.
std::string has_groups(const Gemm& g);

// The gemm of one group; of a gemm without groups, itself.
Gemm one_group(Gemm g);

// Whether signs are multiplied by signs, eight at a time (operations/gemm/cuda/signs.cuh).
bool signs(const Gemm& g);
// The gemm that a kernel of such a problem is planned as: its bytes, like integers with zero points. Of any other, g.
Gemm as_bytes(Gemm g);
std::optional<Problem> as_bytes(const Problem& problem);  // nothing if it is another's

// Columns per word of scales, if the matrix instruction applies the block scales of x and w itself; k and ldx must be
// multiples of it. 0 if x and w are not natively scaled.
int scaled_unit(const Gemm& g);

// Why 32-bit sums of these bytes are not enough, or not possible; empty if they are, or are not needed.
std::string no_sums(const Gemm& g);
// Why a kernel that reads x as its format stores it does not serve the problem; empty if it may.
std::string x_comes_as_floats(const Gemm& g);
// Whether x comes as floats whose rows get a scale each.
bool quantizes_rows(const Gemm& g);
// Whether x is codes with a scale per row, of which a kernel has to make bytes for packed weights.
bool unpacks_rows(const Gemm& g);
// Why x in blocks of codes has no sums that minima of w would take; empty if it has, or there are none.
std::string no_sums_of_group(const Gemm& g);

std::string x_type(const Gemm& g);  // what a kernel that may quantize x takes it as
// As a family's kernel takes them: of signs by signs, their bytes; of codes that it unpacks, these.
std::string multiplied_x(const Gemm& g);
std::string multiplied_w(const Gemm& g);
// Template arguments and includes that every gemm kernel needs.
std::string epilogue_type(const Gemm& g);
std::vector<std::string> includes_for(const Gemm& g, const char* kernel);

}  // namespace tilewright::gemm
