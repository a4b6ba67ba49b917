package dry

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// kind is the folder of measurements on the GPU of these tests.
const kind = "Stub-GPU-80GB"

// sessionScript runs the script on a machine with such GPUs.
func sessionScript(t *testing.T, environment []string, arguments ...string) (printed string, err error) {
	t.Helper()
	tools := t.TempDir()
	const smi = "#!/bin/sh\n[ \"$1\" = --query-gpu=name ] && echo 'Stub GPU, 80GB'\n"
	if err := os.WriteFile(filepath.Join(tools, "nvidia-smi"), []byte(smi), 0o755); err != nil {
		t.Fatal(err)
	}
	command := exec.Command("../session.sh", arguments...)
	command.Env = append(os.Environ(), append([]string{"PATH=" + tools + ":" + os.Getenv("PATH"), "SESSION_COMMIT=0123abc"}, environment...)...)
	text, err := command.CombinedOutput()
	return string(text), err
}

// session runs plans, which are called 0, 1 and so on; files are the archive's files, without the kind of the GPU.
func session(t *testing.T, plans []string, seconds string, environment ...string) (printed string, files map[string]string, err error) {
	t.Helper()
	folder := t.TempDir()
	var paths []string
	for i, plan := range plans {
		paths = append(paths, filepath.Join(folder, fmt.Sprint(i, ".plan")))
		if err := os.WriteFile(paths[i], []byte(plan), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out := filepath.Join(folder, "out")
	text, err := sessionScript(t, append([]string{"SESSION_WORK=" + filepath.Join(folder, "work")}, environment...), strings.Join(paths, ","), out, seconds)
	archive, openErr := os.Open(filepath.Join(out, "session.tar.gz"))
	if openErr != nil {
		t.Fatalf("%v\n%s", openErr, text)
	}
	defer archive.Close()
	unpacked, unzipErr := gzip.NewReader(archive)
	if unzipErr != nil {
		t.Fatal(unzipErr)
	}
	files = map[string]string{}
	for reader := tar.NewReader(unpacked); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(reader)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimPrefix(header.Name, kind+"/")] = string(content)
	}
	table, readErr := os.ReadFile(filepath.Join(out, "table.txt"))
	if readErr != nil || !strings.HasSuffix(text, string(table)) {
		t.Errorf("%v: the table is not what is printed last:\n%s", readErr, text)
	}
	return text, files, err
}

// Lines of two GPUs run at the same time, lines of one GPU one after another. A line that takes too long is ended, and its results so far
// are kept.
func TestSessionOfTwoGPUs(t *testing.T) {
	const plan = `# a comment
0 30 meets    echo first > $PARTS/a; until [ -e $PARTS/../meets-too/b ]; do sleep 0.02; done; echo "GPU $CUDA_VISIBLE_DEVICES"; echo '{}' > $JSON
1 30 meets-too echo second > $PARTS/b; until [ -e $PARTS/../meets/a ]; do sleep 0.02; done; echo "GPU $CUDA_VISIBLE_DEVICES, $MINUTES"

0 5 endless   echo kept > $PARTS/part; echo "says why" >&2; sleep 600
0 30 after    echo last
1 30 fails    exit 3
`
	printed, files, err := session(t, []string{plan}, "200", "SESSION_GPUS=2")
	var status *exec.ExitError
	if !errors.As(err, &status) || status.ExitCode() != 1 {
		t.Errorf("%v", err)
	}
	for _, want := range []string{"== " + kind + "/0/meets, GPU 0, ", "== " + kind + "/0/meets-too, GPU 1, ", "\nGPU 0\n", "\nGPU 1, 0.", "status 3\n"} {
		if !strings.Contains(printed, want) {
			t.Errorf("lacks %q:\n%s", want, printed)
		}
	}
	for _, want := range []string{`== ` + kind + `/0/endless, GPU 0, \d+ s, status 124\nsays why\n`, `== ` + kind + `/0/after, GPU 0, \d+ s, status 0\nlast\n`} {
		if !regexp.MustCompile(want).MatchString(printed) {
			t.Errorf("lacks %s:\n%s", want, printed)
		}
	}
	for name, content := range map[string]string{"0/endless/part": "kept\n", "0/endless.log": "says why\n", "0/meets.json": "{}\n", "0/after.txt": "last\n"} {
		if files[name] != content {
			t.Errorf("%s: %q, want %q", name, files[name], content)
		}
	}
}

// On a machine with fewer GPUs than a plan thinks of, their lines come last, and those for which there is no time are named.
func TestSessionOfOneGPU(t *testing.T) {
	// 25 seconds of all are for the archive, and for a command that does not end when it is asked to. The second takes the time that
	// the first leaves.
	printed, files, err := session(t, []string{"1 100 two echo two; sleep 600\n0 100 one echo one\n", "0 100 three echo three\n"}, "35", "SESSION_GPUS=1")
	one, two, three := strings.Index(printed, "== "+kind+"/0/one, GPU 0"), strings.Index(printed, "== "+kind+"/0/two, GPU 0, "), strings.Index(printed, "== "+kind+"/1/three, GPU 0, 0 s, status not begun")
	if err == nil || one < 0 || two < one || three < two || files["0/two.txt"] != "two\n" {
		t.Errorf("%v\n%s", err, printed)
	}
}

// The GPUs of a second plan follow those of the first.
func TestSessionOfTwoPlans(t *testing.T) {
	printed, _, err := session(t, []string{"0 100 a true\n1 100 b true\n", "0 100 c true\n1 100 d true\n"}, "200", "SESSION_GPUS=4")
	if err != nil {
		t.Error(err)
	}
	for _, want := range []string{"== " + kind + "/0/a, GPU 0, ", "== " + kind + "/0/b, GPU 1, ", "== " + kind + "/1/c, GPU 2, ", "== " + kind + "/1/d, GPU 3, "} {
		if !strings.Contains(printed, want) {
			t.Errorf("lacks %q:\n%s", want, printed)
		}
	}
}

// Suites run at the same time, since each has segments of its own. One that takes too long ends in time.
func TestSessionOfSuites(t *testing.T) {
	driver := build(t, "sim/libcuda.so.1")
	const plan = `0 200 blocks build/gpreempt bench --suite blp-stream --only stream-100us-blocks --requests 1 --out $PARTS --json $JSON
1 200 streams build/gpreempt bench --suite blp-stream --only stream-10us-blocks --requests 1 --out $PARTS --json $JSON
1 8 long build/gpreempt bench --suite foundation --out $PARTS --json $JSON
`
	printed, files, _ := session(t, []string{plan}, "600", "SESSION_GPUS=2", "LD_PRELOAD="+driver, "LD_LIBRARY_PATH="+filepath.Dir(driver), "SIMCUDA_DIR="+t.TempDir())
	for _, want := range []string{kind + "/0/blocks, GPU 0, ", kind + "/0/streams, GPU 1, ", "stream-10us-blocks"} {
		if !strings.Contains(printed, want) {
			t.Errorf("lacks %q:\n%s", want, printed)
		}
	}
	var names []string
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, want := range []string{"0/blocks.json", "0/blocks/blp-stream-stream-100us-blocks.json", "0/streams.json", "0/streams/blp-stream-stream-10us-blocks.json"} {
		if !slices.Contains(names, want) {
			t.Errorf("the archive lacks %s: %v", want, names)
		}
	}
	if status := files["status"]; strings.Count(status, "\t0\n") != 2 || !strings.HasSuffix(status, "\t124\n") {
		t.Errorf("status:\n%s\n%s%s", status, files["0/blocks.log"], files["0/streams.log"])
	}
}
