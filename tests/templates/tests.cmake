tilewright_test(templates tilewright_templates)
add_test(NAME templates COMMAND test_templates)
