// SPDX-License-Identifier: Apache-2.0
// Everything.
#pragma once

#include <tilewright/amax.h>
#include <tilewright/calibration.h>
#include <tilewright/cast.h>
#include <tilewright/conv.h>
#include <tilewright/device_observer.h>
#include <tilewright/engine.h>
#include <tilewright/error.h>
#include <tilewright/fake_quant.h>
#include <tilewright/fused_cast.h>
#include <tilewright/gemm.h>
#include <tilewright/gguf.h>
#include <tilewright/gptq.h>
#include <tilewright/import.h>
#include <tilewright/layer.h>
#include <tilewright/loss_scale.h>
#include <tilewright/memory.h>
#include <tilewright/npy.h>
#include <tilewright/numerics.h>
#include <tilewright/operation.h>
#include <tilewright/pack.h>
#include <tilewright/post_training.h>
#include <tilewright/quantize_model.h>
#include <tilewright/safetensors.h>
#include <tilewright/version.h>
