/* SPDX-License-Identifier: Apache-2.0 */
/* The header in C11: every _INIT initializes its struct. */
#include <tilewright/tilewright_c.h>

/* In C an enumeration's parameter takes any number. */
tw_status stream_bytes_of_number(int stream, int64_t* bytes, tw_error** error) {
  return tw_stream_bytes("f32", (tw_stream_name)stream, 1, 1, bytes, error);
}
const char* status_name_of_number(int status) { return tw_status_name((tw_status)status); }

/* 0, or the number of the first struct whose _INIT does not say its own size or leaves out a default. */
int header_initializers(void) {
  const tw_gemm gemm = TW_GEMM_INIT;
  const tw_gemm_args args = TW_GEMM_ARGS_INIT;
  const tw_value_info value = TW_VALUE_INFO_INIT;
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
  if (value.struct_size != sizeof value || value.by_default.integer || value.name) return 8;
  return 0;
}
