tilewright_test(cache tilewright_cache)
add_test(NAME cache COMMAND test_cache)
