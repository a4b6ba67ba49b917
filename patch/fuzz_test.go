package patch

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// seeds are small images of every generation and compression; testdata/seeds/seed.cu is their source.
func seeds(t testing.TB, pattern string) map[string][]byte {
	t.Helper()
	paths, err := filepath.Glob("testdata/seeds/" + pattern)
	if err != nil || len(paths) == 0 {
		t.Fatalf("seeds %s: %v", pattern, err)
	}
	images := make(map[string][]byte)
	for _, path := range paths {
		if images[path], err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
	}
	return images
}

const fuzzMaxSize = 1 << 22

func FuzzCubin(f *testing.F) {
	for _, image := range seeds(f, "*.cubin") {
		f.Add(image)
	}
	guards := testGuards(f)
	f.Fuzz(func(t *testing.T, image []byte) {
		original := bytes.Clone(image)
		out, report, err := rewriteCubin(image, Options{Guards: guards, MaxSize: fuzzMaxSize})
		if (err == nil) != (out != nil) && len(image) > 0 {
			t.Fatalf("%d bytes and error %v", len(out), err)
		}
		if !bytes.Equal(image, original) {
			t.Fatal("the image given was changed")
		}
		if err != nil {
			return
		}
		if len(out) > fuzzMaxSize || len(out) > len(image)+4096*len(report.Kernels)+1024 {
			t.Fatalf("%d bytes became %d for %d kernels", len(image), len(out), len(report.Kernels))
		}
		if report.Guarded() == 0 {
			return
		}
		checkRewritten(t, out, report, guards)
	})
}

// checkRewritten checks that a result can be read again, and agrees with its report.
func checkRewritten(t *testing.T, out []byte, report Report, guards *Guards) {
	t.Helper()
	_, again, err := rewriteCubin(out, Options{Guards: guards, MaxSize: fuzzMaxSize * 2})
	if err != nil {
		t.Fatalf("the result cannot be read: %v", err)
	}
	if again.SM != report.SM || len(again.Kernels) != len(report.Kernels) {
		t.Fatalf("%+v became %+v", report, again)
	}
	for i, k := range report.Kernels {
		if fresh := again.Kernels[i]; k.Guarded && (fresh.Guarded || fresh.Reason != "has a guard" ||
			fresh.Parameters != k.Parameters+1 || fresh.ParameterBytes != k.HiddenOffset+hiddenSize) {
			t.Fatalf("%+v became %+v", k, fresh)
		}
	}
}

func FuzzFatbin(f *testing.F) {
	for _, image := range seeds(f, "*.fatbin") {
		f.Add(image)
	}
	guards := testGuards(f)
	f.Fuzz(func(t *testing.T, image []byte) {
		original := bytes.Clone(image)
		out, _, err := rewriteFatbin(image, Options{Guards: guards, MaxSize: fuzzMaxSize})
		if (err == nil) != (out != nil) {
			t.Fatalf("%d bytes and error %v", len(out), err)
		}
		if !bytes.Equal(image, original) {
			t.Fatal("the image given was changed")
		}
		if err == nil && len(out) > max(fuzzMaxSize, len(image)) {
			t.Fatalf("%d bytes became %d", len(image), len(out))
		}
		if err != nil {
			return
		}
		if size, err := FatbinSize(out); err != nil || size != len(out) {
			t.Fatalf("the result's header says %d of %d bytes: %v", size, len(out), err)
		}
		if _, err := entries(out); err != nil {
			t.Fatalf("the result cannot be read: %v", err)
		}
		if _, err := Images(image); err != nil && image != nil {
			return
		}
	})
}
