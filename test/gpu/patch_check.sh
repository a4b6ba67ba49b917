#!/bin/sh
# Builds patch_check and what it needs into build/gpu-patch: originals and rewritten cubins for every
# architecture, and run.sh, which chooses by the GPU's. Needs no GPU; the folder is all that a GPU
# machine needs.
set -eu
cd "$(dirname "$0")/../.."
tools=$(kernels/cuda.sh)
out=build/gpu-patch
rm -rf $out
mkdir -p $out/load
gcc -O2 -Wall -Wextra -std=gnu11 -I"$tools/../include" -Ikernels/guard -o $out/patch_check test/gpu/patch_check.c -ldl
for sm in $(kernels/architectures.sh); do
	"$tools/nvcc" -cubin -O3 -std=c++17 -arch="sm_$sm" -o "$out/original.sm_$sm.cubin" test/gpu/patch_check.cu
	build/gpreempt patch "$out/original.sm_$sm.cubin" -o "$out/guarded.sm_$sm.cubin" >/dev/null
	for source in patch/testdata/*.cu; do
		name=$(basename "$source" .cu)
		since=$(sed -n 's/^\/\/ since: sm_//p' "$source")
		[ "$sm" -ge "${since:-0}" ] || continue
		"$tools/nvcc" -cubin -O3 -std=c++17 -arch="sm_$sm" -o $out/image "$source" 2>/dev/null
		build/gpreempt patch $out/image -o "$out/load/$name.sm_$sm.cubin" >/dev/null
		rm $out/image
	done
done
"$tools/nvcc" -fatbin -O3 -std=c++17 --compress-mode=size -gencode 'arch=compute_80,code=[sm_80,compute_80]' \
	-gencode arch=compute_90,code=sm_90 -o $out/image test/gpu/patch_check.cu
for sm in $(kernels/architectures.sh); do
	[ "$sm" -lt 100 ] || continue # the fatbin has nothing for those
	build/gpreempt patch --sm "$sm" $out/image -o "$out/load/fatbin.sm_$sm.fatbin" >/dev/null
done
rm $out/image
cat >$out/run.sh <<'END'
#!/bin/sh
# run.sh [ROUNDS]: compares original and rewritten kernels on this machine's GPU.
cd "$(dirname "$0")"
sm=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader -i 0 | tr -d .)
exec ./patch_check original.sm_$sm.cubin guarded.sm_$sm.cubin "${1:-20}" load/*.sm_$sm.*
END
chmod +x $out/run.sh
echo "built $out: copy it to a machine with a GPU and run run.sh there"
