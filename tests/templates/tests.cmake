tilewright_test(templates tilewright_templates emulator)
add_test(NAME templates COMMAND test_templates)
