# SPDX-License-Identifier: Apache-2.0
# cmake -DWORK=folder -P mutants.cmake: a small tree that keeps the rules passes check.cmake, and each include against one of them fails.
cmake_minimum_required(VERSION 3.24)
file(REMOVE_RECURSE ${WORK})
function(check expected what)
  execute_process(COMMAND ${CMAKE_COMMAND} -DROOT=${WORK} -P ${CMAKE_CURRENT_LIST_DIR}/check.cmake
    RESULT_VARIABLE failed OUTPUT_QUIET ERROR_VARIABLE said)
  string(REGEX REPLACE "[ \n]+" " " said "${said}")  # messages are wrapped
  if(expected STREQUAL "" AND failed)
    message(FATAL_ERROR "${what} is refused: ${said}")
  elseif(NOT expected STREQUAL "" AND NOT (failed AND said MATCHES "${expected}"))
    message(FATAL_ERROR "${what} is not refused as '${expected}': ${said}")
  endif()
endfunction()
# An include in a file that has no other.
function(include_in file line expected)
  file(WRITE ${WORK}/${file} "#include \"${line}\"\n")
  check("${expected}" "${file}: ${line}")
  file(WRITE ${WORK}/${file} "")
endfunction()

foreach(folder support templates jit cache files quantize tuner capi cli bench examples python hosts include)
  file(WRITE ${WORK}/${folder}/a.h "")
endforeach()
check("" "the tree")
include_in(tuner/a.h templates/common/words.h "")
include_in(jit/a.h templates/common/words.h "jit/a\\.h")
include_in(cli/a.h tuner/layer.h "cli/a\\.h")

foreach(allowed "operations/gemm/cpu/a.cpp;backends/cpu/ir.h" "operations/gemm/cuda/a.cuh;formats/shared/tiles.cuh"
    "operations/conv/cuda/a.cuh;operations/gemm/cuda/mma/kernel.cuh" "operations.cpp;operations/gemm/gemm.h"
    "formats/q4_0.h;backends/cpu/panel_format.h" "backends/cpu/a.cpp;formats/shared/fast_path.h")
  list(POP_BACK allowed to)
  include_in(templates/${allowed} ${to} "")
  include_in(templates/${allowed} templates/${to} "")
endforeach()
set(belongs "an operation, although it belongs to none")
set(reason "another operation, without a reason")
foreach(refused "backends/cpu/a.h;operations/gemm/params.cuh;${belongs}" "backends/cuda/a.cuh;operations/cast/params.cuh;${belongs}"
    "formats/q4_0.cuh;operations/gemm/cuda/operands.cuh;${belongs}" "common/a.cpp;operations/gemm/gemm.h;${belongs}"
    "operations/gemm/a.cpp;operations/pack/pack.h;${reason}" "operations/cast/cuda/a.cuh;operations/conv/params.cuh;${reason}"
    "backends/cuda/a.cuh;formats/shared/tiles.cuh;a format" "operations/gemm/cuda/a.cpp;operations/gemm/cpu/gemm.h;the other backend"
    "operations/gemm/cpu/a.cpp;operations/gemm/cuda/family.h;the other backend" "backends/cpu/a.h;backends/cuda/ptx.cuh;the other backend")
  list(GET refused 0 file)
  list(GET refused 1 to)
  list(GET refused 2 why)
  include_in(templates/${file} ${to} "${why}")
  include_in(templates/${file} templates/${to} "${why}")
endforeach()

foreach(i RANGE 1 26)
  file(WRITE ${WORK}/templates/formats/${i}.cuh "")
endforeach()
check("" "many formats")
foreach(i RANGE 1 26)
  file(WRITE ${WORK}/quantize/model/${i}.cpp "")
endforeach()
check("quantize/model: 26 files" "a crowded folder")
file(REMOVE ${WORK}/quantize/model/1.cpp)
check("" "a full folder")
