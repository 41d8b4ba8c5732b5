// SPDX-License-Identifier: Apache-2.0
// Everything.
#pragma once

#include <tilewright/engine.h>
#include <tilewright/error.h>
#include <tilewright/gguf.h>
#include <tilewright/import.h>
#include <tilewright/memory.h>
#include <tilewright/numerics.h>
#include <tilewright/safetensors.h>
#include <tilewright/version.h>
