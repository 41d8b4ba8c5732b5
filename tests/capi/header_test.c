/* SPDX-License-Identifier: Apache-2.0 */
/* The header in C11: every _INIT initializes its struct, and the layout is the one that was published. */
#include <stddef.h>
#include <tilewright/tilewright_c.h>

/* Sizes on x86-64 and aarch64 Linux. One that changes breaks programs that were compiled before: a struct grows at its
 * end, in a release that keeps taking the size that stands here, or TW_ABI_VERSION rises. */
#define SIZE(type, bytes) _Static_assert(sizeof(type) == bytes, #type)
SIZE(tw_format_info, 80);
SIZE(tw_arch_info, 32);
SIZE(tw_field_info, 32);
SIZE(tw_operand, 24);
SIZE(tw_mutable_operand, 24);
SIZE(tw_gemm, 160);
SIZE(tw_buffer_info, 40);
SIZE(tw_host_check, 48);
SIZE(tw_device_info, 56);
SIZE(tw_stats, 64);
SIZE(tw_planned, 24);
SIZE(tw_gemm_args, 136);
SIZE(tw_cast_args, 64);
SIZE(tw_pack_args, 56);
SIZE(tw_kernel_info, 20);
SIZE(tw_tune_policy, 72);
SIZE(tw_tune_summary, 80);
SIZE(tw_outcome, 88);
SIZE(tw_row_range, 40);
SIZE(tw_prewarm_policy, 40);
SIZE(tw_prewarm_summary, 32);
SIZE(tw_merge_report, 40);
SIZE(tw_launch_plan, 52);
SIZE(tw_task_buffer, 40);
SIZE(tw_task_spec, 128);
SIZE(tw_tensor_info, 48);
SIZE(tw_checkpoint_tensor, 32);
SIZE(tw_checkpoint_weight, 168);
SIZE(tw_exported, 72);

/* 0, or the number of the first struct whose _INIT does not say its own size or leaves out a default. */
int header_initializers(void) {
  const tw_gemm gemm = TW_GEMM_INIT;
  const tw_gemm_args args = TW_GEMM_ARGS_INIT;
  const tw_tune_policy tune = TW_TUNE_POLICY_INIT;
  const tw_prewarm_policy prewarm = TW_PREWARM_POLICY_INIT;
  const tw_launch_plan plan = TW_LAUNCH_PLAN_INIT;
  const tw_checkpoint_weight weight = TW_CHECKPOINT_WEIGHT_INIT;
  const tw_task_spec task = TW_TASK_SPEC_INIT;
  if (gemm.struct_size != sizeof gemm || gemm.alpha != 1 || gemm.beta != 1 || gemm.y_scale != 1) return 1;
  if (args.struct_size != sizeof args || args.alpha != 1 || args.beta != 1) return 2;
  if (tune.struct_size != sizeof tune || tune.max_candidates != 16 || tune.max_binaries != 40) return 3;
  if (prewarm.struct_size != sizeof prewarm || prewarm.top != 4 || prewarm.every_bucket != 1) return 4;
  if (plan.struct_size != sizeof plan || plan.x.fixed != 1 || plan.z.fixed != 1 || plan.cluster != 1) return 5;
  if (weight.struct_size != sizeof weight || weight.bits != 4 || weight.group != 128) return 6;
  if (task.struct_size != sizeof task || task.user) return 7;
  return 0;
}
