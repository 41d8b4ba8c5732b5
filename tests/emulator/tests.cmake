# The emulator that other folders' tests link to run kernels, and its own tests. Kernels view memory through several
# types, as CUDA allows and a host compiler by default does not.
add_library(emulator STATIC emulator/async.cpp emulator/emulator.cpp emulator/fiber.cpp emulator/fragments.cpp
  emulator/grids.cpp emulator/scheduler.cpp emulator/sm90.cpp emulator/warpgroup.cpp)
target_include_directories(emulator PUBLIC ${PROJECT_SOURCE_DIR}/templates ${CMAKE_CURRENT_SOURCE_DIR})
# Units of k that a thread does not own stay uninitialized and unread, which the compiler cannot see.
target_compile_options(emulator PUBLIC -fno-strict-aliasing -Wno-maybe-uninitialized)
target_compile_options(emulator PRIVATE ${TILEWRIGHT_TEST_COMPUTES})
# The switching of fibers must be fast in a debug build too.
target_compile_options(emulator PRIVATE $<$<CONFIG:Debug>:-O1>)
if(TILEWRIGHT_SANITIZE MATCHES "thread")
  # To ThreadSanitizer each fiber is a thread; what the scheduler does between them is not the kernel's doing.
  target_compile_options(emulator PRIVATE -fno-sanitize=thread)
  target_compile_definitions(emulator PRIVATE TILEWRIGHT_EMULATOR_TSAN=1)
endif()

tilewright_test(emulator emulator)
target_compile_options(test_emulator PRIVATE ${TILEWRIGHT_TEST_COMPUTES})
get_target_property(emulator_tests test_emulator SOURCES)
list(FILTER emulator_tests EXCLUDE REGEX "/emulator/(async|emulator|fiber|fragments|grids|scheduler|sm90|warpgroup)\\.cpp$")
# Every format's kernels, a translation unit each, or for a few formats together. Without TILEWRIGHT_TEST_ALL those that
# share their layout's code with one of these are left out.
set(one_of_each_kind e2m1_row e4m3_b128 e4m3_g128 e4m3_row e4m3_tensor f16 ggml_nvfp4 int3_g64 int4_g128 int4_row int8_row iq1_m iq2_xxs
  iq3_s iq4_xs mxfp4 mxfp8 nf4 nvfp4 q1_0 q4_k q5_1 q6_k q8_0 q8_1 sign_row ternary_row tq1_0 uint4_g32)
set(formats ${TILEWRIGHT_FORMATS})
if(NOT TILEWRIGHT_TEST_ALL)
  set(formats ${one_of_each_kind})
  set(left_out ${TILEWRIGHT_FORMATS})
  list(REMOVE_ITEM left_out ${one_of_each_kind})
  tilewright_left_out(emulator_formats "kernels of the formats ${left_out}")
endif()
set(group 0)
foreach(FORMAT ${formats})
  set(source ${TILEWRIGHT_GENERATED_DIR}/tests/format_${FORMAT}_test.cpp)
  configure_file(emulator/format_test.cpp.in ${source} @ONLY)
  list(APPEND emulator_tests ${source})
  math(EXPR group "${group} + 1")
  math(EXPR unit "${group} / 3")
  set_source_files_properties(${source} PROPERTIES UNITY_GROUP formats_${unit})
endforeach()
set_target_properties(test_emulator PROPERTIES SOURCES "${emulator_tests}"
  UNITY_BUILD ${TILEWRIGHT_UNITY} UNITY_BUILD_MODE GROUP)
add_test(NAME emulator COMMAND test_emulator ~[gemm])
foreach(family gemv mma reference wgmma)  # apart, so that they run side by side
  add_test(NAME emulator_${family} COMMAND test_emulator "${family}*")
endforeach()
# Seconds: the longest tests of all start first.
set_tests_properties(emulator_mma emulator_wgmma emulator_gemv PROPERTIES COST 50)
