#!/usr/bin/env python3
"""Processor seconds of a request's model work in llama-cpp-python without its server: a prompt of 100 tokens and 32 more, sampled.

    model_alone.py MODEL.gguf REQUESTS
"""
import sys
import time

import llama_cpp

model = llama_cpp.Llama(sys.argv[1], n_ctx=512, n_threads=1, n_threads_batch=1, verbose=False)
prompt = model.tokenize(b" hello world time house water people " * 12)[:100]
for count in (5, int(sys.argv[2])):
    begun = time.process_time()
    for _ in range(count):
        model.reset()
        for n, _ in enumerate(model.generate(prompt, temp=0.0)):
            if n == 31:
                break
print((time.process_time() - begun) / count)
