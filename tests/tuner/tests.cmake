tilewright_test(tuner tilewright_tuner tilewright_templates tilewright_jit tilewright_cache fake_cuda)
# The other end of PrewarmPolicy::worker, as the command line tool is in a user's hands.
add_executable(test_compile_worker ${CMAKE_CURRENT_LIST_DIR}/worker/main.cpp)
target_link_libraries(test_compile_worker PRIVATE tilewright)
add_dependencies(test_tuner test_compile_worker)
add_test(NAME tuner COMMAND test_tuner)
set_tests_properties(tuner PROPERTIES COST 40)
