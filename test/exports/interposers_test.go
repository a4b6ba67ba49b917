package exports_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Another library stands in front of the driver too, ahead of this one or behind it. Without a role nothing changes. With one, each
// of the two and the driver see a call once, whichever way the program comes.
func TestOtherInterposers(t *testing.T) {
	b := build(t)
	b.cc("caller", "testdata/caller.c", filepath.Join(b.dir, "libcuda.so.1"))
	ways := []string{"linked", "dlsym", "dlvsym", "default", "next", "proc", "procproc"}
	for _, form := range []string{"OWN_LOOKUPS", "SYMBOLS", "UNSEEN"} {
		other := "lib" + strings.ToLower(form) + ".so"
		b.cc(other, "-shared", "-fPIC", "-D"+form, "testdata/interposer.c")
		for _, way := range ways {
			for name, order := range map[string][]string{"behind": {"libgp.so", other}, "ahead": {other, "libgp.so"}} {
				t.Run(strings.ToLower(form)+"/"+way+"/"+name, func(t *testing.T) {
					b := bench{TB: t, dir: b.dir}
					without := b.run("caller", way, nil, other)
					if passive := b.run("caller", way, nil, slices.Clone(order)...); passive != without {
						t.Errorf("no role: got\n%s\nwithout the library\n%s", passive, without)
					}
					got := b.run("caller", way, active, slices.Clone(order)...)
					for _, call := range []struct{ name, begin string }{
						{"cuMemcpyAsync", "  begin copy on"}, {"cuMemFree_v2", "  begin wait for memory"},
					} {
						seen, before := strings.Count(got, "other "+call.name+"\n"), strings.Count(without, "other "+call.name+"\n")
						if strings.Count(got, call.begin) != 1 || strings.Count(got, "driver "+call.name+"\n") != 1 || seen > 1 || seen < before {
							t.Errorf("%s is seen %d times by the other library, without this one %d times:\n%s", call.name, seen, before, got)
						}
					}
				})
			}
		}
	}
}

// An NVTX tool behind this library asks for the one behind itself, and is not told that this is itself. Only who has a role, and looks a tool up
// by its handle, finds another function.
func TestNVTXToolsChain(t *testing.T) {
	b := build(t)
	b.cc("nvtx", "testdata/nvtx.c")
	b.cc("libtool.so", "-shared", "-fPIC", "-DTOOL", "testdata/nvtx.c")
	tool := "NVTX_INJECTION64_PATH=" + filepath.Join(b.dir, "libtool.so")
	for _, way := range []string{"handle", "default", "next"} {
		for _, role := range []string{"off", "", "5"} {
			got := b.run("nvtx", way, []string{tool, "GPREEMPT_PRIORITY=" + role}, "libgp.so", "libtool.so")
			if front := strings.Count(got, "in front of an NVTX tool"); !strings.HasSuffix(got, "tool, behind it none\n") || (front == 1) != (way == "handle" && role == "5") || front > 1 {
				t.Errorf("%s, role %q:\n%s", way, role, got)
			}
		}
	}
}

// Sanitizers look functions up before anything that they stand in front of may be called.
func TestFirstLookUpCallsNothing(t *testing.T) {
	b := bench{TB: t, dir: t.TempDir()}
	b.cc("objects.o", "-c", "-fPIC", "../../exports/objects.c")
	for _, name := range b.undefined("objects.o") {
		if name != "_DYNAMIC" && name != "_GLOBAL_OFFSET_TABLE_" && name != "_r_debug" {
			t.Errorf("exports/objects.c uses %s, which another library may stand in front of", name)
		}
	}
}
