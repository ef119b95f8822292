di_c_api_check(structured)
