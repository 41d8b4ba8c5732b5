tilewright_test(jit tilewright_jit)
add_test(NAME jit COMMAND test_jit)
