tilewright_test(templates tilewright_templates emulator)
add_test(NAME templates COMMAND test_templates)
target_include_directories(test_templates PRIVATE ${TILEWRIGHT_GENERATED_DIR})  # the list of formats
