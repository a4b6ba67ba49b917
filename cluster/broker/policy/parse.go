package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"

	"github.com/gpreempt/gpreempt/broker/wire"
	"github.com/gpreempt/gpreempt/configs"
)

// setting is a key of a table of the file: what it may hold, and where that goes. set returns false for a value that is not
// allowed.
type setting[T any] struct {
	key, allowed string
	set          func(to *T, value any) bool
}

func integer[T any, N int | uint32](key string, low, high int64, unit string, field func(*T) *N) setting[T] {
	return setting[T]{key, fmt.Sprintf("an integer from %d to %d (%s)", low, high, unit), func(to *T, value any) bool {
		n, ok := value.(int64)
		if ok = ok && n >= low && n <= high; ok {
			*field(to) = N(n)
		}
		return ok
	}}
}

// draft is a rule as written in the file.
type draft struct {
	grant   Grant
	when    string
	refused string
}

var grantSettings = []setting[draft]{
	{"level", `"lc", "be" or an integer from 0 to 7`, func(to *draft, value any) bool {
		switch v := value.(type) {
		case int64:
			to.grant.Level = int(v)
			return v >= 0 && v < Levels
		case string:
			to.grant.Level = map[string]int{"lc": 0, "be": Levels - 1}[v]
			return v == "lc" || v == "be"
		}
		return false
	}},
	{"admit", "true or false", func(to *draft, value any) (ok bool) { to.grant.Admit, ok = value.(bool); return ok }},
	{"refused", `"be" or "off"`, func(to *draft, value any) bool {
		to.refused, _ = value.(string)
		to.grant.Off = to.refused == "off"
		return to.grant.Off || to.refused == "be"
	}},
	{"share", "a number from 0 to less than 1 (part of the GPU's time)", func(to *draft, value any) bool {
		part, ok := number(value)
		to.grant.Share = part
		return ok && part >= 0 && part < 1 // not NaN either
	}},
	{"share_max", "a number from 0.000001 to 1 (part of the GPU's time)", func(to *draft, value any) bool {
		part, ok := number(value)
		to.grant.ShareMax = part
		return ok && part >= 1e-6 && part <= 1 // not NaN either
	}},
	{"per", `"process", "user", "cgroup" or "rule"`, func(to *draft, value any) (ok bool) {
		text, _ := value.(string)
		to.grant.Per, ok = wire.ParsePer(text)
		return ok
	}},
	{"objective", configs.ObjectiveAllowed, func(to *draft, value any) bool {
		text, _ := value.(string)
		o, err := configs.ParseObjective(configs.Objective{}, text)
		to.grant.Objective = o.Word()
		return err == nil
	}},
	integer("max_hold_ms", 1, 10_000, "ms", func(to *draft) *uint32 { return &to.grant.MaxHoldMs }),
	{"memory_limit", configs.MemoryLimitAllowed, func(to *draft, value any) (ok bool) {
		text, ok := value.(string)
		if ok {
			to.grant.Memory, ok = configs.ParseMemoryLimit(text)
		}
		return ok
	}},
}

// renamed maps keys of earlier versions to the present ones.
var renamed = map[string]string{"memory_mb": "memory_limit"}

const longestName = 31 // bytes, of a rule: as much as messages have room for

var ruleSettings = append([]setting[draft]{
	{"name", fmt.Sprintf("a text of 1 to %d bytes", longestName), func(to *draft, value any) (ok bool) {
		to.grant.Rule, ok = value.(string)
		return ok && to.grant.Rule != "" && len(to.grant.Rule) <= longestName
	}},
	{"when", "a condition in CEL", func(to *draft, value any) (ok bool) { to.when, ok = value.(string); return ok && to.when != "" }},
}, grantSettings...)

var quotaSettings = []setting[Quota]{
	integer("members_per_uid", 1, 64, "clients of a GPU", func(to *Quota) *int { return &to.MembersPerUID }),
	integer("members_per_cgroup", 1, 64, "clients of a GPU", func(to *Quota) *int { return &to.MembersPerCgroup }),
	integer("connections_per_uid", 1, 100_000, "connections", func(to *Quota) *int { return &to.ConnectionsPerUID }),
	integer("connections_per_cgroup", 1, 100_000, "connections", func(to *Quota) *int { return &to.ConnectionsPerCgroup }),
	integer("messages_per_second", 10, 100_000, "messages", func(to *Quota) *int { return &to.MessagesPerSecond }),
	integer("messages_per_uid", 10, 1_000_000, "messages a second", func(to *Quota) *int { return &to.MessagesPerUID }),
}

var turnSettings = []setting[Policy]{
	integer("quantum_ms", 1, 10_000, "ms", func(to *Policy) *uint32 { return &to.QuantumMs }),
	integer("memory_late_ms", 1, 3_600_000, "ms", func(to *Policy) *uint32 { return &to.MemoryLateMs }),
}

var controlSettings = []setting[string]{
	{"when", "a condition in CEL", func(to *string, value any) (ok bool) { *to, ok = value.(string); return ok && *to != "" }},
}

// Parse reads a policy. The name is for errors.
func Parse(name string, data []byte) (*Policy, error) {
	var file map[string]any
	_, err := toml.Decode(string(data), &file)
	var parse toml.ParseError
	if errors.As(err, &parse) {
		return nil, fmt.Errorf("%s: line %d: %s", name, parse.Position.Line, parse.Message)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	p := &Policy{Path: name, text: string(data), QuantumMs: 100, MemoryLateMs: 200_000,
		Quota: Quota{MembersPerUID: 48, MembersPerCgroup: 48, ConnectionsPerUID: 512, ConnectionsPerCgroup: 512, MessagesPerSecond: 1000, MessagesPerUID: 4000}}
	r := reader{name: name}
	control, fallback := "", draft{grant: Grant{Rule: "default", Admit: true, Level: Levels - 1}}
	for _, key := range sorted(file) {
		switch value := file[key]; key {
		case "default":
			table(&r, key, value, &fallback, grantSettings)
			r.whole(key, &fallback)
		case "quota":
			table(&r, key, value, &p.Quota, quotaSettings)
		case "turns":
			table(&r, key, value, p, turnSettings)
		case "control":
			table(&r, key, value, &control, controlSettings)
		case "rule":
			p.rules = r.rules(value)
		default:
			r.wrong(`%s: unknown key, must be "default", "rule", "quota", "turns" or "control"`, key)
		}
	}
	p.fallback = fallback.grant
	if control != "" {
		if p.control, err = compile(environment("asker.", "target."), control); err != nil {
			r.wrong("control.when = %q: %v", control, err)
		}
	}
	if len(r.errs) > 0 {
		return nil, errors.Join(r.errs...)
	}
	return p, nil
}

// reader collects mistakes of the file.
type reader struct {
	name string
	errs []error
}

func (r *reader) wrong(format string, arguments ...any) {
	r.errs = append(r.errs, fmt.Errorf("%s: %s", r.name, fmt.Sprintf(format, arguments...)))
}

func (r *reader) rules(value any) (rules []rule) {
	list, ok := value.([]map[string]any)
	if !ok {
		r.wrong("rule = %v, must be tables: [[rule]]", value)
		return nil
	}
	env, names := environment(""), map[string]bool{}
	for i, one := range list {
		where := fmt.Sprintf("rule[%d]", i)
		if name, ok := one["name"].(string); ok {
			where = fmt.Sprintf("rule[%d] %q", i, name)
		}
		d := draft{grant: Grant{Admit: true, Level: Levels - 1}}
		before := len(r.errs)
		table(r, where, one, &d, ruleSettings)
		if r.whole(where, &d); len(r.errs) > before {
			continue
		}
		if d.grant.Rule == "" || d.when == "" {
			r.wrong("%s: lacks name or when", where)
			continue
		}
		if d.grant.Rule == "default" {
			r.wrong("%s.name: [default] has this name, must be another", where)
		} else if names[d.grant.Rule] {
			r.wrong("%s: there is another rule of this name", where)
		}
		names[d.grant.Rule] = true
		condition, err := compile(env, d.when)
		if err != nil {
			r.wrong("%s.when = %q: %v", where, d.when, err)
			continue
		}
		rules = append(rules, rule{d.grant, condition})
	}
	return rules
}

// whole says what is wrong with the keys of a rule together.
func (r *reader) whole(where string, d *draft) {
	g := &d.grant
	if d.refused != "" && g.Admit {
		r.wrong("%s.refused = %q: nobody is refused, must stand with admit = false", where, d.refused)
	}
	if g.Per != wire.PerProcess && g.Share == 0 && g.ShareMax == 0 && g.Memory == (configs.MemoryLimit{}) {
		r.wrong("%s.per = %q: there is nothing to divide, must stand with share, share_max or memory_limit", where, g.Per)
	}
	if g.Per != wire.PerProcess && g.Memory.Part != 0 {
		r.wrong("%s.memory_limit: the %s would divide a part of each GPU's memory, must be in MB or GB beside per", where, g.Per)
	}
	if g.ShareMax != 0 && g.ShareMax < g.Share {
		r.wrong("%s.share_max = %v: must not be below share = %v", where, g.ShareMax, g.Share)
	}
	if g.Objective.Says() && g.Level == Levels-1 {
		r.wrong("%s.objective = %q: best effort has none, must stand with a level from 0 to %d", where, g.Objective, Levels-2)
	}
}

// table reads the keys of one table.
func table[T any](r *reader, where string, value any, to *T, settings []setting[T]) {
	keys, ok := value.(map[string]any)
	if !ok {
		r.wrong("%s = %v, must be a table", where, value)
		return
	}
	for _, key := range sorted(keys) {
		i := slices.IndexFunc(settings, func(s setting[T]) bool { return s.key == key })
		if i < 0 {
			names := make([]string, 0, len(settings))
			for _, s := range settings {
				names = append(names, s.key)
			}
			if now, is := renamed[key]; is && slices.Contains(names, now) {
				r.wrong("%s.%s: is %s now", where, key, now)
				continue
			}
			r.wrong("%s.%s: unknown key, must be one of %s", where, key, strings.Join(names, ", "))
			continue
		}
		if !settings[i].set(to, keys[key]) {
			r.wrong("%s.%s = %s, must be %s", where, key, shown(keys[key]), settings[i].allowed)
		}
	}
}

func shown(value any) string {
	if text, ok := value.(string); ok {
		return fmt.Sprintf("%q", text)
	}
	return fmt.Sprint(value)
}

func sorted(table map[string]any) []string {
	keys := make([]string, 0, len(table))
	for key := range table {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// number is a value of TOML as a number. False: it is none.
func number(value any) (float64, bool) {
	if n, isInteger := value.(int64); isInteger {
		return float64(n), true
	}
	n, ok := value.(float64)
	return n, ok
}
