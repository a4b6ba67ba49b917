package kernels

import (
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestFillOnTheCPU runs the kernels of fill.cu thread by thread against memset and memcpy.
func TestFillOnTheCPU(t *testing.T) {
	program := filepath.Join(t.TempDir(), "fill")
	build := exec.Command("gcc", "-O2", "-std=gnu11", "-Wall", "-fsanitize=undefined", "-fno-sanitize=pointer-overflow", "-fno-sanitize-recover",
		"-Werror", "-o", program, "testdata/fill.c")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	const room = 1 << 18
	var cases []string
	random := rand.New(rand.NewPCG(1, 2))
	sizes := []uint64{1, 2, 3, 4, 15, 16, 17, 31, 100, 252, 255, 256, 257, 4080, 4095, 4096, 4097, 8192, 32768, 40000}
	for _, n := range sizes { // every alignment of either end
		for offset := uint64(0); offset < 17; offset++ {
			cases = append(cases,
				fmt.Sprintf("fill %d 0 %d 1 %d 1", 4096+offset, n, random.Uint32()),
				fmt.Sprintf("copy %d 0 %d 1 %d 0", 4096+random.Uint64N(17), n, offset),
				fmt.Sprintf("copy %d 0 %d 1 %d 0", 4096+random.Uint64N(17), n, room-n-offset))
		}
	}
	for range 300 { // rows
		width := 1 + random.Uint64N(700)
		if random.IntN(4) == 0 {
			width = 4 + random.Uint64N(20000)
		}
		align := []uint64{1, 4, 16}[random.IntN(3)]
		width = (width + align - 1) / align * align
		pitch, other := width+random.Uint64N(40)*align, width+random.Uint64N(40)*align
		height := 1 + random.Uint64N(min(500, room/2/max(pitch, other)))
		to, from := random.Uint64N(64)*align, random.Uint64N(64)*align
		cases = append(cases, fmt.Sprintf("copy %d %d %d %d %d %d", to, pitch, width, height, from, other))
		size := uint64(1) << random.IntN(3)
		cases = append(cases, fmt.Sprintf("fill %d %d %d %d %d %d", to*size, pitch*size/4*4, width/size*size, (height+3)/4, random.Uint32(), size))
	}
	command := exec.Command(program)
	command.Stdin = strings.NewReader(strings.Join(cases, "\n"))
	out, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	answers := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(answers) != len(cases) {
		t.Fatalf("%d answers to %d cases: %s", len(answers), len(cases), answers[len(answers)-1])
	}
	for i, answer := range answers {
		if answer != "same" {
			t.Errorf("%s: %s", cases[i], answer)
		}
	}
}
