# Everything that ./run and ./test do not do. `make` alone lists it.
.PHONY: help bench soak clients deploy-check image-check format lint clean fresh

help:
	@echo 'bench   measures and writes bench/RESULTS.md'
	@echo 'soak    the long tests'
	@echo 'clients the public client libraries and schemathesis against the server'
	@echo 'deploy-check promtool and the schemas of Kubernetes over deploy/ and /metrics'
	@echo 'image-check  the steps of deploy/Dockerfile in a chroot (root, debootstrap), and what they make'
	@echo 'format  clang-format over all sources'
	@echo 'lint    the repository checks and clang-tidy'
	@echo 'clean   removes build/'
	@echo 'fresh   ./run --once and ./test from a clean clone, with times'

bench:
	@tools/bench.sh

soak:
	@tools/soak.sh

clients:
	@tools/clients.sh

deploy-check:
	@tools/deploy_check.sh

image-check:
	@tools/image_check.py

format:
	@tools/install.sh --test
	@git ls-files -z --cached --others --exclude-standard -- '*.cc' '*.h' '*.cu' '*.cuh' | xargs -0 clang-format-19 -i

lint:
	@./test checks tidy

clean:
	rm -rf build

fresh:
	@tools/fresh.sh
