package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpreempt/gpreempt/broker/join"
	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/internal/clitest"
)

const units = "../../../packaging/systemd"

func readUnit(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(units, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The sockets of the unit have the paths that clients look for and that the broker makes by itself. The names of levels are the same.
func TestUnitsSayThePaths(t *testing.T) {
	var want []string
	for level := range configs.Levels {
		want = append(want, "ListenSequentialPacket="+join.SocketIn(join.Directory, level))
	}
	socket := readUnit(t, "gpreemptd.socket")
	if !strings.Contains(socket, strings.Join(want, "\n")+"\n") || strings.Count(socket, "Listen") != len(want) {
		t.Errorf("%q in\n%s", want, socket)
	}
	admin, service := readUnit(t, "gpreemptd-admin.socket"), readUnit(t, "gpreemptd.service")
	for _, want := range []string{"ListenSequentialPacket=" + join.AdminIn(join.Directory), "SocketMode=0600", "Service=gpreemptd.service"} {
		if !strings.Contains(admin, "\n"+want+"\n") || strings.Count(admin, "Listen") != 1 {
			t.Errorf("no %q in\n%s", want, admin)
		}
	}
	if want := "\nSockets=gpreemptd.socket gpreemptd-admin.socket\n"; !strings.Contains(service, want) {
		t.Errorf("no %q in\n%s", want, service)
	}
	names := readUnit(t, "gpreemptd.conf")
	for name, level := range map[string]int{"lc": 0, "be": configs.Levels - 1} {
		if want := fmt.Sprintf("\nL %s/%s - - - - %d\n", join.Directory, name, level); !strings.Contains(names, want) {
			t.Errorf("no %q in\n%s", want, names)
		}
	}
}

// systemd waits until the broker says that it serves, and starts another one when it does not say that it lives.
func TestUnitSaysWhenToStartAnother(t *testing.T) {
	service := readUnit(t, "gpreemptd.service")
	for _, want := range []string{"Type=notify", "Restart=on-failure", "WatchdogSec=10", "RuntimeDirectory=gpreemptd", "RuntimeDirectoryPreserve=yes"} {
		if !strings.Contains(service, "\n"+want+"\n") {
			t.Errorf("no %q in\n%s", want, service)
		}
	}
}

// systemd understands the units.
func TestUnitsAreUnderstood(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("systemd-analyze is not installed")
	}
	verify := func(change func(string) string) string {
		t.Helper()
		folder := t.TempDir()
		var paths []string
		for _, name := range []string{"gpreemptd.service", "gpreemptd.socket", "gpreemptd-admin.socket", "gpreempt-cdi.service"} {
			text := strings.NewReplacer("ExecStart=gpreemptd\n", "ExecStart="+command+"\n", "ExecStart=gpreempt ", "ExecStart=/bin/true ").Replace(readUnit(t, name))
			path := filepath.Join(folder, name)
			if err := os.WriteFile(path, []byte(change(text)), 0o644); err != nil {
				t.Fatal(err)
			}
			paths = append(paths, path)
		}
		c := exec.Command("systemd-analyze", append([]string{"verify", "--man=no"}, paths...)...)
		c.Env = append(os.Environ(), "SYSTEMD_UNIT_PATH="+folder+":")
		said, err := c.CombinedOutput()
		if err != nil {
			said = fmt.Appendf(said, "%v", err)
		}
		var ours strings.Builder // the machine's own units may have mistakes
		for line := range strings.Lines(string(said)) {
			if strings.Contains(line, "gpreempt") || strings.Contains(line, "exit status") {
				ours.WriteString(line)
			}
		}
		return ours.String()
	}
	if said := verify(func(text string) string { return text }); said != "" {
		t.Error(said)
	}
	if said := verify(func(text string) string { return strings.Replace(text, "\nNoNew", "\nNoSuch", 1) }); !strings.Contains(said, "NoSuch") {
		t.Errorf("a mistake is not found: %s", said)
	}
}

// The policy that packages bring is sound, and so are the rules in its comments.
func TestPackagedPolicy(t *testing.T) {
	text := readUnit(t, "policy.toml")
	head, examples, found := strings.Cut(text, "\n# [[rule]]\n")
	if !found {
		t.Fatal(text)
	}
	all := head + "\n[[rule]]\n" + strings.ReplaceAll(strings.ReplaceAll(examples, "\n# ", "\n"), "\n#\n", "\n\n")
	all = strings.TrimPrefix(strings.ReplaceAll("\n"+all, "\n# name", "\nname"), "\n")
	for _, policy := range []string{text, all} {
		path := clitest.Write(t, "policy.toml", policy)
		if status, out, said := clitest.Run(t, command, nil, "--check", "--policy", path); status != 0 || out != path+": no mistakes\n" {
			t.Errorf("%d, %s%s in\n%s", status, out, said, policy)
		}
	}
	if strings.Count(all, "\n[[rule]]\n") < 3 {
		t.Errorf("the rules are\n%s", all)
	}
}
