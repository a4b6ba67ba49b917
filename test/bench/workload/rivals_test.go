package workload

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func rival(t *testing.T, name string) System {
	t.Helper()
	found, err := Systems([]string{name})
	if err != nil {
		t.Fatal(err)
	}
	return found[0]
}

func TestRivals(t *testing.T) {
	rivals, err := Rivals()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range rivals {
		names = append(names, s.Name)
	}
	if want := []string{"mps-25", "mps-50", "mps-partition", "xsched-queues", "xsched-tsg", "nvshare", "nice", "reset"}; !slices.Equal(names, want) {
		t.Errorf("rivals %v, want %v", names, want)
	}
	if !IsRival("nvshare") || IsRival("default") {
		t.Error("nvshare is a rival, default is none")
	}
	queues, tsg := rival(t, "xsched-queues"), rival(t, "xsched-tsg")
	if queues.Server() == "" || queues.Server() != tsg.Server() || queues.Server() == rival(t, "nvshare").Server() {
		t.Error("both of XSched's have its daemon, and nvshare another")
	}
	if queues.Processes("be") == tsg.Processes("be") {
		t.Error("levels of XSched share processes")
	}
	if rival(t, "mps").Server() == rival(t, "mps-partition").Server() || rival(t, "mps").Server() != rival(t, "mps-25").Server() {
		t.Error("static partitions need an MPS server of their own, percentages do not")
	}
	plain, nice := rival(t, "default"), rival(t, "nice")
	if plain.Processes("lc") != nice.Processes("lc") || plain.Processes("be") == nice.Processes("be") {
		t.Error("nice differs from default in the BE processes, and only in these")
	}
	if got := queues.Variables("lc", "/r"); got["LD_LIBRARY_PATH"] != "/r/xsched/lib" || got["XSCHED_AUTO_XQUEUE_PRIORITY"] != "1" {
		t.Errorf("variables of LC: %v", got)
	}
	if got := tsg.Variables("be", "/r"); got["XSCHED_CUDA_LV3_IMPL"] != "TSG" || got["XSCHED_AUTO_XQUEUE_LEVEL"] != "3" || got["XSCHED_AUTO_XQUEUE_PRIORITY"] != "0" {
		t.Errorf("variables of BE: %v", got)
	}
}

func TestWhatRivalsCannotTake(t *testing.T) {
	for _, test := range []struct{ system, workload, want string }{
		{"xsched-queues", "A", "legacy default stream"},
		{"xsched-tsg", "Y", "legacy default stream"}, // LC is PyTorch's
		{"xsched-tsg", "spin", ""},
		{"reset", "Z", "written for it"}, {"reset", "spin", ""},
		{"nvshare", "A", ""}, {"nvshare", "two-gpus", "one GPU"}, {"mps-partition", "two-gpus", "one GPU"}, {"mps-25", "two-gpus", ""},
	} {
		i := slices.IndexFunc(All, func(w Workload) bool { return w.Name == test.workload })
		if got := rival(t, test.system).CannotTake(All[i]); (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
			t.Errorf("%s under %s: %q, want %q", test.workload, test.system, got, test.want)
		}
	}
}

func TestWhatRivalsLack(t *testing.T) {
	folder := t.TempDir()
	queues, partition := rival(t, "xsched-queues"), rival(t, "mps-partition")
	lacks := func(s System, folder string, cuda int, want string) {
		t.Helper()
		if got := s.Lacks(folder, cuda); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%s lacks %q, want %q", s.Name, got, want)
		}
	}
	lacks(queues, "", 13000, "not there: xsched/bin/xserver of a folder that --rivals names")
	lacks(queues, folder, 13000, "not there: xsched/bin/xserver of the folder of rivals")
	for _, file := range queues.Needs.Files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(folder, file)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, file), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	lacks(queues, folder, 13000, "")
	lacks(partition, "", 13000, "needs a driver of CUDA 13.1, this one is of 13.0")
	lacks(partition, "", 13010, "")
	root := ""
	if os.Geteuid() != 0 {
		root = "needs root"
	}
	lacks(System{Needs: Needs{Root: true}}, "", 0, root)
}

func TestBadRivals(t *testing.T) {
	const daemon, needs = "[daemon]\ncommand = [\"a/b\"]\n", "[needs]\nfiles = [\"a/b\"]\n"
	for _, test := range []struct{ text, want string }{
		{needs + daemon + "ready = \"tcp:50000\"", ""},
		{needs + daemon + "ready = \"/run/b.sock\"", ""},
		{needs + daemon + "ready = \"b.sock\"", "must be tcp:PORT, or an absolute path"},
		{needs + daemon + "ready = \"tcp:fifty\"", "must be tcp:PORT"},
		{needs + daemon + "ready = \"tcp:1\"\nthen = [\"a/c\"]", `needs.files lacks "a/c"`},
		{daemon + "ready = \"tcp:1\"", `needs.files lacks "a/b"`},
		{"[daemon]\nready = \"tcp:1\"", "daemon.command is missing"},
		{"mps = true\n" + needs + daemon + "ready = \"tcp:1\"", "mps and daemon"},
		{"[needs]\nfiles = [\"/a/b\"]", "must be a path below"},
		{"[needs]\nfiles = [\"../b\"]", "must be a path below"},
		{"[needs]\nfils = [\"b\"]", "unknown key needs.fils"},
		{"[be]\nLD_PRELOAD = \"{rivals}/b.so\"", "needs.files says nothing"},
		{"[cannot]\ngraphs = \"x\"", "cannot.graphs: there are default-stream, several-gpus, other-kernels"},
		{"[cannot]\ndefault-stream = \"\"", "the reason is missing"},
		{"reset = true", "cannot.other-kernels is missing"},
		{"be_chunks = 4", "beside mps = true"},
		{"nice = 20", "must be 0 to 19"},
		{"loads = \"a/b.so\"", "without folders"},
	} {
		_, err := parseSystem("mine.toml", []byte("about = \"x\"\n"+test.text))
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: %v, want %q", test.text, err, test.want)
		}
	}
}
