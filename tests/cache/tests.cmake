tilewright_test(cache tilewright_cache)
add_test(NAME cache COMMAND test_cache)
set_tests_properties(cache PROPERTIES COST 30)
