tilewright_test(templates SEPARATE tilewright_templates emulator)
add_test(NAME templates COMMAND test_templates)
target_include_directories(test_templates PRIVATE ${TILEWRIGHT_GENERATED_DIR})  # the list of formats

# Codecs refuse to be compiled in a way that changes what they compute.
foreach(option -ffast-math -ffinite-math-only)
  add_test(NAME templates_refuse${option} COMMAND ${CMAKE_CXX_COMPILER} -std=c++20 ${option} -fsyntax-only
    -I${PROJECT_SOURCE_DIR}/templates -x c++ ${PROJECT_SOURCE_DIR}/templates/backends/cuda/numeric.cuh)
  set_tests_properties(templates_refuse${option} PROPERTIES PASS_REGULAR_EXPRESSION "error.*compile without")
endforeach()
