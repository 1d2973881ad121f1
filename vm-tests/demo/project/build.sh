# The project's build: writes, makes executable and runs a program of its own.
mkdir -p out
printf '#!/bin/sh\necho built\n' >out/program
chmod +x out/program
out/program
