package policy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpreempt/gpreempt/broker/wire"
	"github.com/gpreempt/gpreempt/configs"
)

const example = `
[[rule]]
name = "nobody"
when = 'uid == 666'
admit = false

[[rule]]
name = "gone"
when = 'uid == 667'
admit = false
refused = "off"

[[rule]]
name = "said"
when = 'uid == 668'
admit = false
refused = "be"

[[rule]]
name = "inference"
when = 'uid == 1000 || pod_namespace == "prod" && cgroup.startsWith("/kubepods") && annotations["gpreempt.io/role"] == "lc"'
level = "lc"
share = 0.25
per = "user"
max_hold_ms = 50
memory_limit = '20000MB'

[[rule]]
name = "middle"
when = '100 in groups || socket < 3 && wanted == 2'
level = 2
objective = "first=200ms,step=25ms,p=95"

[default]
share = 0.1

[quota]
members_per_uid = 8
messages_per_second = 100

[turns]
quantum_ms = 7

[control]
when = 'asker.uid == 0 || asker.gid == 100 && target.pod_namespace == "dev"'
`

func parsed(t *testing.T, text string) *Policy {
	t.Helper()
	p, err := Parse("policy.toml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestTheFirstRuleThatHoldsCounts(t *testing.T) {
	p := parsed(t, example)
	inference := Grant{Rule: "inference", Admit: true, Level: 0, Per: wire.PerUser, Share: 0.25, MaxHoldMs: 50, Memory: configs.MemoryLimit{MB: 20000}}
	middle := Grant{Rule: "middle", Admit: true, Level: 2, Objective: configs.Objective{StepMs: 25, FirstMs: 200, Percentile: 95}.Word()}
	fallback := Grant{Rule: "default", Admit: true, Level: 7, Share: 0.1}
	pod := Facts{UID: 5, Namespace: "prod", Cgroup: "/kubepods.slice/x", Annotations: map[string]string{"gpreempt.io/role": "lc"}}
	other := pod
	other.Cgroup = "/user.slice"
	for _, c := range []struct {
		facts Facts
		want  Grant
	}{
		{Facts{UID: 666, Groups: []uint32{100}}, Grant{Rule: "nobody", Level: 7}},
		{Facts{UID: 667}, Grant{Rule: "gone", Off: true, Level: 7}}, {Facts{UID: 668}, Grant{Rule: "said", Level: 7}},
		{Facts{UID: 1000}, inference}, {pod, inference}, {other, fallback},
		{Facts{Groups: []uint32{4, 100}}, middle}, {Facts{Socket: 2, Wanted: 2}, middle}, {Facts{Socket: 3, Wanted: 2}, fallback}, {Facts{UID: 1}, fallback},
	} {
		got, err := p.Grant(c.facts)
		if err != nil || got != c.want {
			t.Errorf("%+v: %+v, %v; want %+v", c.facts, got, err, c.want)
		}
	}
	if p.Quota.MembersPerUID != 8 || p.Quota.MembersPerCgroup != 48 || p.Quota.MessagesPerSecond != 100 || p.QuantumMs != 7 {
		t.Errorf("%+v", p)
	}
	if p.String() != example {
		t.Error("the text is another")
	}
}

// A condition that cannot be evaluated counts as not holding, and Grant returns an error that names its rule.
func TestConditionsThatFail(t *testing.T) {
	p := parsed(t, `
[[rule]]
name = "missing"
when = 'annotations["no"] == "lc"'
level = 0`)
	got, err := p.Grant(Facts{})
	if got.Rule != "default" || err == nil || !strings.Contains(err.Error(), `rule "missing"`) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestWhoMaySet(t *testing.T) {
	p := parsed(t, example)
	own := parsed(t, "[control]\nwhen = 'own && asker.host && !target.host'")
	for _, c := range []struct {
		policy        *Policy
		asker, target Facts
		own, want     bool
	}{
		{p, Facts{UID: 0}, Facts{}, false, true}, {p, Facts{UID: 1, GID: 100}, Facts{Namespace: "dev"}, false, true}, {p, Facts{UID: 1, GID: 100}, Facts{UID: 1}, true, false},
		{Default(), Facts{UID: 0}, Facts{UID: 4}, false, false}, {Default(), Facts{UID: 4}, Facts{UID: 4}, false, false}, {Default(), Facts{UID: 4}, Facts{UID: 5}, true, true},
		{own, Facts{Host: true}, Facts{}, true, true}, {own, Facts{Host: true}, Facts{}, false, false}, {own, Facts{}, Facts{}, true, false}, {own, Facts{Host: true}, Facts{Host: true}, true, false},
	} {
		if got, err := c.policy.MaySet(c.asker, c.target, c.own); got != c.want || err != nil {
			t.Errorf("%+v on %+v: %v, %v", c.asker, c.target, got, err)
		}
	}
}

func TestTheDefaultAdmitsAsBestEffort(t *testing.T) {
	got, err := Default().Grant(Facts{})
	if want := (Grant{Rule: "default", Admit: true, Level: 7}); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
}

// Errors name file, key, value, and what is allowed; each is one line.
func TestErrorsSayWhatIsWrong(t *testing.T) {
	const rule = "[[rule]]\nname = \"r\"\nwhen = \"true\"\n"
	for text, want := range map[string]string{
		"x":                                       "p.toml: line 1: ",
		"speed=1":                                 `p.toml: speed: unknown key, must be "default", "rule", "quota", "turns" or "control"`,
		"default=1":                               "p.toml: default = 1, must be a table",
		"rule=1":                                  "p.toml: rule = 1, must be tables: [[rule]]",
		"[default]\nwhen='true'":                  "p.toml: default.when: unknown key, must be one of level, admit, refused, share, share_max, per, objective, max_hold_ms, memory_limit",
		"[default]\nlevel='fast'":                 `p.toml: default.level = "fast", must be "lc", "be" or an integer from 0 to 7`,
		"[default]\nlevel=8":                      `p.toml: default.level = 8, must be`,
		"[default]\nobjective='slowdown=2'":       `p.toml: default.objective = "slowdown=2": best effort has none, must stand with a level from 0 to 6`,
		"[default]\nshare_max=0":                  `p.toml: default.share_max = 0, must be a number from 0.000001 to 1 (part of the GPU's time)`,
		"[default]\nshare_max=1.5":                `p.toml: default.share_max = 1.5, must be a number`,
		"[default]\nshare_max=nan":                `p.toml: default.share_max = NaN, must be a number`,
		"[default]\nshare=0.3\nshare_max=0.2":     `p.toml: default.share_max = 0.2: must not be below share = 0.3`,
		"[default]\nlevel=0\nobjective='step=20'": `p.toml: default.objective = "step=20", must be ` + configs.ObjectiveAllowed,
		rule + "level='lc'\nobjective=2":          `p.toml: rule[0] "r".objective = 2, must be ` + configs.ObjectiveAllowed,
		"[default]\nshare=1.0":                    "p.toml: default.share = 1, must be a number from 0 to less than 1",
		"[default]\nshare=nan":                    "p.toml: default.share = NaN, must be",
		"[default]\nper='gpu'\nshare=0.1":         `p.toml: default.per = "gpu", must be "process", "user", "cgroup" or "rule"`,
		"[default]\nadmit=false\nrefused='lc'":    `p.toml: default.refused = "lc", must be "be" or "off"`,
		"[default]\nrefused='off'":                `p.toml: default.refused = "off": nobody is refused, must stand with admit = false`,
		rule + "refused='be'\nadmit=true":         `p.toml: rule[0] "r".refused = "be": nobody is refused, must stand with admit = false`,
		"[default]\nper=1\nshare=0.1":             `p.toml: default.per = 1, must be "process", "user", "cgroup" or "rule"`,
		"[default]\nper='user'":                   `p.toml: default.per = "user": there is nothing to divide, must stand with share, share_max or memory_limit`,
		rule + "per='rule'\nshare=0":              `p.toml: rule[0] "r".per = "rule": there is nothing to divide, must stand with share, share_max or memory_limit`,
		"[default]\nmemory_mb=20000":              `p.toml: default.memory_mb: is memory_limit now`,
		"[default]\nmemory_limit=20":              `p.toml: default.memory_limit = 20, must be ` + configs.MemoryLimitAllowed,
		"[default]\nmemory_limit='0%'":            `p.toml: default.memory_limit = "0%", must be ` + configs.MemoryLimitAllowed,
		rule + "per='user'\nmemory_limit='40%'":   `p.toml: rule[0] "r".memory_limit: the user would divide a part of each GPU's memory, must be in MB or GB beside per`,
		"[default]\nmax_hold_ms=0":                "p.toml: default.max_hold_ms = 0, must be an integer from 1 to 10000 (ms)",
		"[default]\nadmit='no'":                   `p.toml: default.admit = "no", must be true or false`,
		"[quota]\nmembers_per_uid=65":             "p.toml: quota.members_per_uid = 65, must be an integer from 1 to 64 (clients of a GPU)",
		"[turns]\nquantum_ms=0":                   "p.toml: turns.quantum_ms = 0, must be an integer from 1 to 10000 (ms)",
		rule + rule:                               `p.toml: rule[1] "r": there is another rule of this name`,
		"[[rule]]\nname='default'\nwhen='true'":   `p.toml: rule[0] "default".name: [default] has this name, must be another`,
		"[[rule]]\nwhen='true'":                   "p.toml: rule[0]: lacks name or when",
		"[[rule]]\nname='r'":                      `p.toml: rule[0] "r": lacks name or when`,
		"[[rule]]\nname='r'\nwhen='uid'":          `p.toml: rule[0] "r".when = "uid": is int, must be bool`,
		"[[rule]]\nname='r'\nwhen='uid='":         `p.toml: rule[0] "r".when = "uid=": column`,
		"[[rule]]\nname='r'\nwhen='user == 1'":    `p.toml: rule[0] "r".when = "user == 1": column 1: undeclared reference to 'user'; equality is ==, and text stands in quotes: docs/broker.md, The policy`,
		"[control]\nwhen='uid == 1'":              `p.toml: control.when = "uid == 1": column 1: undeclared reference to 'uid'`,
		rule + "limit=1":                          `p.toml: rule[0] "r".limit: unknown key, must be one of name, when, level`,
	} {
		_, err := Parse("p.toml", []byte(text))
		if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v; want %s", text, err, want)
		}
	}
	_, err := Parse("p.toml", []byte("[default]\nlevel=9\nshare=2\n[turns]\nquantum_ms=0"))
	if err == nil || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("three mistakes: %v", err)
	}
}

func TestFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.toml")
	if _, err := Load(path); err == nil {
		t.Error("a missing file was read")
	}
	if _, err := Load(filepath.Dir(path)); err == nil {
		t.Error("a directory was read")
	}
	if err := os.WriteFile(path, []byte(example), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := Load(path)
	if err != nil || p.Path != path {
		t.Error(p, err)
	}
	if err := os.Truncate(path, mostBytes+1); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path); err == nil {
		t.Error("a file that is too long was read")
	}
}

// A client with so many groups that a condition takes too long gets nothing, whatever the rules after it say.
func TestConditionsThatTakeTooLong(t *testing.T) {
	p, err := Parse("test.toml", []byte("[default]\nlevel = 'lc'\n[[rule]]\nname = 'no'\nwhen = 'groups.exists(g, g == 666)'\nadmit = false\n"))
	if err != nil {
		t.Fatal(err)
	}
	groups := make([]uint32, 60000)
	for _, last := range []uint32{0, 666} {
		groups[len(groups)-1] = last
		if g, err := p.Grant(Facts{Groups: groups}); g.Admit || err == nil {
			t.Errorf("%+v, %v", g, err)
		}
	}
	if g, err := p.Grant(Facts{Groups: groups[:10]}); !g.Admit || err != nil {
		t.Errorf("%+v, %v", g, err)
	}
}
