package dry

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// calls are calls of one plan after another, with the results that they leave in a folder.
type calls struct {
	t                    *testing.T
	folder, plan, commit string
}

func newCalls(t *testing.T, plan string) *calls {
	t.Helper()
	c := &calls{t, t.TempDir(), "", "0123abc"}
	c.plan = filepath.Join(c.folder, "some.plan")
	c.write(c.plan, plan)
	return c
}

func (c *calls) write(path, text string) {
	c.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
}

// do runs the script in a folder of results.
func (c *calls) do(work string, arguments ...string) (printed string, err error) {
	c.t.Helper()
	return sessionScript(c.t, []string{"SESSION_WORK=" + filepath.Join(c.folder, work), "SESSION_COMMIT=" + c.commit, "SESSION_GPUS=1", "ONCE=" + c.folder}, arguments...)
}

// want does the same, and fails where it does not succeed, or fail, and say so.
func (c *calls) want(succeeds bool, work string, arguments []string, says ...string) string {
	c.t.Helper()
	printed, err := c.do(work, arguments...)
	if (err == nil) != succeeds {
		c.t.Fatalf("%q: %v\n%s", arguments, err, printed)
	}
	for _, text := range says {
		if !strings.Contains(printed, text) {
			c.t.Errorf("%q lacks %q:\n%s", arguments, text, printed)
		}
	}
	return printed
}

func (c *calls) archive() string { return filepath.Join(c.folder, "out", "session.tar.gz") }

// The second line ends when it finds what its first run left; the first may run once.
const twoLines = `0 30 once     mkdir $ONCE/ran && echo '{}' > $PARTS/suite-part.json
0 40 in-parts [ -e $PARTS/first ] || { echo begun > $PARTS/first; exit 3; }
`

// Measurements of one machine go along to the next one, which goes straight to what is left.
func TestSessionGoesOnElsewhere(t *testing.T) {
	c := newCalls(t, twoLines)
	run := []string{c.plan, filepath.Join(c.folder, "out"), "200"}
	c.want(true, "here", []string{"--next", c.plan}, "0123abc\n", "any GPU\tsome\tonce\tGPU 0\t30 s\tnot begun\n", "any GPU\t2 lines are open, at most 70 s of one GPU\n")
	c.want(false, "there", run, "some/once, GPU 0, ", "some/in-parts, GPU 0, ", "status 3\n")
	c.want(true, "here", []string{"--take", c.archive()}, "took ")
	open := c.want(true, "here", []string{"--next", c.plan}, kind+"\tsome\tin-parts\tGPU 0\t40 s\tstatus 3 after ", kind+"\t1 lines are open, at most 40 s of one GPU\n")
	if strings.Contains(open, "once") {
		t.Errorf("a finished line is open:\n%s", open)
	}
	c.want(true, "here", run, "some/once, GPU 0, 0 s, status finished before\n", "some/in-parts, GPU 0, ")
	c.want(true, "here", []string{"--next", c.plan}, kind+"\t0 lines are open")
	// A line that says something else is another one.
	c.write(c.plan, strings.Replace(twoLines, "suite-part", "suite-other", 1))
	c.want(true, "here", []string{"--next", c.plan}, kind+"\tsome\tonce\tGPU 0\t30 s\tstatus 0 after ", kind+"\t1 lines are open")
}

// A line that is finished here stays so, though the archive of another call has less of it.
func TestTakeKeepsWhatIsFinished(t *testing.T) {
	c := newCalls(t, "0 30 line [ -e $ONCE/known ] && echo whole > $PARTS/x\n")
	run := []string{c.plan, filepath.Join(c.folder, "out"), "200"}
	c.want(false, "there", run)
	c.write(filepath.Join(c.folder, "known"), "")
	c.want(true, "here", append(run[:1:1], filepath.Join(c.folder, "out-here")), "")
	c.want(true, "here", []string{"--take", c.archive()}, kind+"/some/line stays")
	if x, err := os.ReadFile(filepath.Join(c.folder, "here", kind, "some/line/x")); err != nil || string(x) != "whole\n" {
		t.Errorf("%q, %v", x, err)
	}
	c.want(true, "here", []string{"--next", c.plan}, "0 lines are open")
}

func TestSessionIsOfOneCommit(t *testing.T) {
	c := newCalls(t, "0 30 line true\n")
	run := []string{c.plan, filepath.Join(c.folder, "out"), "200"}
	c.want(true, "there", run)
	c.commit = "4567def"
	c.want(false, "there", run, "is of 0123abc, the build of 4567def")
	c.want(false, "here", []string{"--take", c.archive()}, "it is of 0123abc, the build of 4567def; nothing was taken")
	c.want(true, "there", []string{"--next", c.plan}, "0123abc\n", "the build is of 4567def")
	c.want(true, "there", []string{"--take", c.archive()}, "took ") // whatever is built by now
	if err := os.Remove(filepath.Join(c.folder, "there/commit")); err != nil {
		t.Fatal(err)
	}
	c.want(false, "there", run, "is of unknown commit, the build of 4567def")
}

// An archive that was split is taken whole or not at all.
func TestTakeOfParts(t *testing.T) {
	c := newCalls(t, "0 30 line head -c 100000 /dev/urandom > $PARTS/x\n")
	c.want(true, "there", []string{c.plan, filepath.Join(c.folder, "out"), "200"})
	text, err := os.ReadFile(c.archive())
	if err != nil {
		t.Fatal(err)
	}
	first, second := c.archive()+".aa", c.archive()+".ab"
	c.write(first, string(text[:50000]))
	c.write(second, string(text[50000:]))
	for _, parts := range [][]string{{first}, {second}, {second, first}} {
		c.want(false, "here", append([]string{"--take"}, parts...), "it is not whole, or no archive", "nothing was taken")
	}
	c.want(true, "here", []string{"--take", first, second}, "took ")
	c.want(true, "here", []string{"--next", c.plan}, "0 lines are open")
}

// An archive that could write elsewhere is refused, all of it. Links are left out.
func TestTakeOfForeignArchives(t *testing.T) {
	c := newCalls(t, "")
	commit := tar.Header{Name: "commit", Typeflag: tar.TypeReg}
	for _, test := range []struct {
		headers []tar.Header
		says    string
	}{
		{[]tar.Header{commit, {Name: "../outside", Typeflag: tar.TypeReg}}, "'../outside', which is no name below a folder"},
		{[]tar.Header{commit, {Name: "a/../../outside", Typeflag: tar.TypeReg}}, "which is no name below a folder"},
		{[]tar.Header{commit, {Name: filepath.Join(c.folder, "outside"), Typeflag: tar.TypeReg}}, "which is no name below a folder"},
		{[]tar.Header{commit, {Name: "a\\outside", Typeflag: tar.TypeReg}}, "which is no name below a folder"},
		{[]tar.Header{{Name: "a/b/c.txt", Typeflag: tar.TypeReg}}, "it names no commit"},
		{[]tar.Header{commit, {Name: "a", Typeflag: tar.TypeSymlink, Linkname: c.folder}, {Name: "a/outside", Typeflag: tar.TypeReg}}, ""},
	} {
		var packed bytes.Buffer
		zipped := gzip.NewWriter(&packed)
		archive := tar.NewWriter(zipped)
		for _, header := range test.headers {
			content := []byte("0123abc\n")
			if header.Typeflag == tar.TypeReg {
				header.Size = int64(len(content))
			}
			if err := archive.WriteHeader(&header); err != nil {
				t.Fatal(err)
			}
			if header.Size > 0 {
				if _, err := archive.Write(content); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := archive.Close(); err != nil {
			t.Fatal(err)
		}
		if err := zipped.Close(); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(c.folder, "foreign.tar.gz")
		c.write(path, packed.String())
		if test.says == "" {
			c.want(true, "here", []string{"--take", path}, "left out: a, which is no file")
			continue
		}
		c.want(false, "here", []string{"--take", path}, test.says, "nothing was taken")
		if left, err := os.ReadDir(filepath.Join(c.folder, "here")); err != nil || len(left) > 0 {
			t.Errorf("%v, %v", left, err)
		}
	}
	if _, err := os.Stat(filepath.Join(c.folder, "outside")); err == nil {
		t.Error("a link was followed")
	}
}

// The wheels of a folder that is named are there for the call's commands.
func TestSessionWithWheels(t *testing.T) {
	wheels := t.TempDir()
	var packed bytes.Buffer
	archive := zip.NewWriter(&packed)
	for name, text := range map[string]string{
		"gpreempt_dry.py":                          "word = 'from the wheel'\n",
		"gpreempt_dry-1.0.dist-info/METADATA":      "Metadata-Version: 2.1\nName: gpreempt-dry\nVersion: 1.0\n",
		"gpreempt_dry-1.0.dist-info/WHEEL":         "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		"gpreempt_dry-1.0.dist-info/RECORD":        "",
		"gpreempt_dry-1.0.dist-info/top_level.txt": "gpreempt_dry\n",
	} {
		file, err := archive.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := file.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(wheels, "gpreempt_dry-1.0-py3-none-any.whl"), packed.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	const plan = "0 30 imports python3 -c 'import gpreempt_dry; print(gpreempt_dry.word)'\n"
	if printed, _, err := session(t, []string{plan}, "200", "WHEELS="+wheels); err != nil || !strings.Contains(printed, "\nfrom the wheel\n") {
		t.Errorf("%v\n%s", err, printed)
	}
	if printed, _, err := session(t, []string{plan}, "200"); err == nil || !strings.Contains(printed, "No module named") {
		t.Errorf("without: %v\n%s", err, printed)
	}
}

// Results of several lines are one file of their suite and their GPU.
func TestSessionIsMerged(t *testing.T) {
	driver := build(t, "sim/libcuda.so.1")
	const plan = `0 200 short  build/gpreempt bench --suite blp-stream --only stream-10us-blocks --requests 1 --minutes $MINUTES --out $PARTS --json $JSON
0 200 long   build/gpreempt bench --suite blp-stream --only stream-100us-blocks --requests 1 --minutes $MINUTES --out $PARTS --json $JSON
0 200 probe  echo '{}' > $JSON
0 200 fails  build/gpreempt bench --suite blp-stream --only stream-narrow-16-blocks --requests 1 --minutes $MINUTES --out $PARTS --json $JSON; false
`
	work, merged := filepath.Join(t.TempDir(), "work"), t.TempDir()
	if printed, _, err := session(t, []string{plan}, "600", "SESSION_WORK="+work, "LD_PRELOAD="+driver, "LD_LIBRARY_PATH="+filepath.Dir(driver), "SIMCUDA_DIR="+t.TempDir()); err == nil {
		t.Errorf("%s", printed)
	}
	path := filepath.Join(merged, "simulated-h200-blp-stream.json")
	merge := func() (string, error) { return sessionScript(t, []string{"SESSION_WORK=" + work}, "--merge", merged) }
	if printed, err := merge(); err != nil || !strings.Contains(printed, path+"\n") || !strings.Contains(printed, "0/probe: no suite's, left out\n") {
		t.Fatalf("%v\n%s", err, printed)
	}
	var results struct{ Cases []struct{ Case string } }
	if text, err := os.ReadFile(path); err != nil || json.Unmarshal(text, &results) != nil || len(results.Cases) != 10 ||
		results.Cases[0].Case != "stream-10us-blocks" || results.Cases[5].Case != "stream-100us-blocks" {
		t.Errorf("%v, %s", err, text)
	}
	// A result that is there and was not measured again is not lost.
	if err := os.WriteFile(path, []byte(`{"cases": [{"case": "stream-narrow-66-blocks", "system": "gpreempt"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if printed, err := merge(); err == nil || !strings.Contains(printed, "has what the new results lack, remove it if that is meant: stream-narrow-66-blocks under gpreempt") {
		t.Errorf("%v\n%s", err, printed)
	}
}

// A plan that is finished takes no GPU from those behind it.
func TestFinishedPlansTakeNoGPU(t *testing.T) {
	c := newCalls(t, "0 30 line true\n")
	second := filepath.Join(c.folder, "second.plan")
	c.write(second, "0 30 line true\n")
	out := filepath.Join(c.folder, "out")
	c.want(true, "here", []string{c.plan, out, "200"})
	printed, err := sessionScript(t, []string{"SESSION_WORK=" + filepath.Join(c.folder, "here"), "SESSION_GPUS=2"}, c.plan+","+second, out, "200")
	if err != nil || !strings.Contains(printed, "== "+kind+"/second/line, GPU 0, ") {
		t.Errorf("%v\n%s", err, printed)
	}
}
