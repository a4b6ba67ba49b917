package patch

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/gpreempt/gpreempt/kernels"
)

// cudaTools is the folder of the pinned compiler and disassemblers, which ../kernels/cuda.sh installs.
// Where they cannot be had, or GPREEMPT_NO_CUDA_TOOLS declares that, tests that need them are skipped; in CI, that is with
// GPREEMPT_CI, they fail.
func cudaTools(t testing.TB) string {
	t.Helper()
	folder, err := cudaToolsOnce()
	switch {
	case err != nil && os.Getenv("GPREEMPT_CI") != "":
		t.Fatal(err)
	case err != nil:
		t.Skip(err)
	}
	return folder
}

var cudaToolsOnce = sync.OnceValues(func() (string, error) {
	if os.Getenv("GPREEMPT_NO_CUDA_TOOLS") != "" {
		return "", errors.New("GPREEMPT_NO_CUDA_TOOLS is set: no CUDA tools to test with")
	}
	command := exec.Command("../kernels/cuda.sh")
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("install the CUDA tools: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
})

func testGuards(t testing.TB) *Guards {
	t.Helper()
	guards, err := ParseGuards(kernels.Guard)
	if err != nil {
		t.Fatal(err)
	}
	return guards
}

// output runs one of the tools.
func output(t testing.TB, tool string, arguments ...string) string {
	t.Helper()
	out, err := exec.Command(filepath.Join(cudaTools(t), tool), arguments...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", tool, arguments, err, out)
	}
	return string(out)
}

// once returns what a run of a tool made of its input, now or earlier. what and arguments name the run and hold its input.
func once(t testing.TB, run func() []byte, what string, arguments ...any) []byte {
	t.Helper()
	sum := sha256.Sum256(fmt.Appendf(nil, "%s "+what, append([]any{cudaTools(t)}, arguments...)...))
	kept := filepath.Join("..", "build", "corpus", fmt.Sprintf("%x", sum[:12]))
	if result, err := os.ReadFile(kept); err == nil {
		return result
	}
	result := run()
	if err := os.MkdirAll(filepath.Dir(kept), 0o755); err != nil {
		t.Fatal(err)
	}
	// Written whole or not at all, for tests run at once.
	fresh, err := os.CreateTemp(filepath.Dir(kept), ".fresh")
	if err != nil {
		t.Fatal(err)
	}
	_, err = fresh.Write(result)
	if err = errors.Join(err, fresh.Close()); err == nil {
		err = os.Rename(fresh.Name(), kept)
	}
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// compile compiles a source.
func compile(t testing.TB, source string, arguments ...string) []byte {
	t.Helper()
	text, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	return once(t, func() []byte {
		fresh := filepath.Join(t.TempDir(), "image")
		output(t, "nvcc", append(append([]string{"-std=c++17", "-O3"}, arguments...), "-o", fresh, source)...)
		image, err := os.ReadFile(fresh)
		if err != nil {
			t.Fatal(err)
		}
		return image
	}, "%q %s", arguments, text)
}

// written is the path of a file with an image.
func written(t testing.TB, image []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image.cubin")
	if err := os.WriteFile(path, image, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// line is an instruction as nvdisasm shows it, labels replaced by places in their sections.
type line struct {
	offset int
	text   string
}

var (
	sectionLine = regexp.MustCompile(`^\s*\.section\s+(\.text\.[^,\s]+|"\.text\.[^"]+")`)
	labelLine   = regexp.MustCompile(`^([.$\w]+):`)
	codeLine    = regexp.MustCompile(`^\s*/\*([0-9a-f]+)\*/\s+(.*?)\s*;?\s*$`)
	labelUse    = regexp.MustCompile(`\.L_x_\d+|\.L_\d+`)
)

// disassemble reads the code of every kernel.
func disassemble(t testing.TB, image []byte) map[string][]line {
	t.Helper()
	type place struct {
		section string
		offset  int
	}
	code, labels := make(map[string][]line), make(map[string]place)
	section, pending := "", []string(nil)
	shown := once(t, func() []byte { return []byte(output(t, "nvdisasm", "-c", written(t, image))) }, "nvdisasm -c %s", image)
	for _, text := range strings.Split(string(shown), "\n") {
		if m := sectionLine.FindStringSubmatch(text); m != nil {
			section = strings.Trim(m[1], `"`)
		} else if m := labelLine.FindStringSubmatch(text); m != nil {
			pending = append(pending, m[1])
		} else if m := codeLine.FindStringSubmatch(text); m != nil {
			offset, err := strconv.ParseInt(m[1], 16, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, label := range pending {
				labels[label] = place{section, int(offset)}
			}
			pending = nil
			code[section] = append(code[section], line{int(offset), strings.Join(strings.Fields(m[2]), " ")})
		}
	}
	for section, lines := range code {
		start := "`(" + strings.TrimPrefix(section, ".text.") + ")"
		for i := range lines {
			lines[i].text = strings.Replace(lines[i].text, start, "`(<+0x0>)", 1)
			lines[i].text = labelUse.ReplaceAllStringFunc(lines[i].text, func(label string) string {
				p, ok := labels[label]
				if !ok {
					return label
				}
				return fmt.Sprintf("<%s+%#x>", strings.TrimPrefix(p.section, section), p.offset-lines[0].offset)
			})
		}
	}
	return code
}
