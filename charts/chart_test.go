// Package charts tests the Helm chart: what it makes of its values is what Kubernetes takes. It is a module of its own, so that what it
// needs is no dependency of gpreempt.
package charts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	admissionv1beta1 "k8s.io/api/admissionregistration/v1beta1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/admission"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/client-go/openapi/openapitest"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/gpreempt/gpreempt/cluster/broker/policy"
	"github.com/gpreempt/gpreempt/cluster/nri"
	"github.com/gpreempt/gpreempt/configs"
)

const (
	release   = "node"
	namespace = "gpreempt-system"
	image     = "registry.example.com/gpreempt"
)

var loaded = sync.OnceValues(func() (*chart.Chart, error) { return loader.LoadDir("gpreempt") })

func load(t *testing.T) *chart.Chart {
	t.Helper()
	c, err := loaded()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// tables makes values of settings in the form of --set a.b=VALUE, where the value is YAML.
func tables(t *testing.T, settings ...string) map[string]any {
	t.Helper()
	all := map[string]any{}
	for _, s := range settings {
		path, text, _ := strings.Cut(s, "=")
		var value any
		if err := sigsyaml.Unmarshal([]byte(text), &value); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
		keys, at := strings.Split(path, "."), all
		for _, key := range keys[:len(keys)-1] {
			below, is := at[key].(map[string]any)
			if !is {
				below = map[string]any{}
				at[key] = below
			}
			at = below
		}
		at[keys[len(keys)-1]] = value
	}
	return all
}

var apis = []string{"admissionregistration.k8s.io/v1/MutatingAdmissionPolicy", "admissionregistration.k8s.io/v1beta1/MutatingAdmissionPolicy"}

// render returns the chart's output for some values, in a cluster with some APIs.
func render(t *testing.T, apis []string, settings ...string) (map[string]string, error) {
	t.Helper()
	c := load(t)
	capabilities := common.DefaultCapabilities.Copy()
	capabilities.APIVersions = append(common.VersionSet{"v1", "apps/v1"}, apis...)
	values, err := util.ToRenderValues(c, tables(t, settings...), common.ReleaseOptions{Name: release, Namespace: namespace, IsInstall: true}, capabilities)
	if err != nil {
		return nil, err
	}
	return engine.Render(c, values)
}

// objects are the rendered objects, each decoded into its own type. A field that the type does not have is an error.
type objects struct {
	daemonSet  *appsv1.DaemonSet
	policy     *admissionv1.MutatingAdmissionPolicy
	validating *admissionv1.ValidatingAdmissionPolicy
	validation []admissionv1.ValidationAction
	config     map[string]string
	namespace  *corev1.Namespace
	network    *networkingv1.NetworkPolicy
	monitor    *monitoringv1.PodMonitor
	rules      *monitoringv1.PrometheusRule
	board      *corev1.ConfigMap
	constraint *SecurityContextConstraints
	kinds      []string
}

func decode(t *testing.T, texts map[string]string) (all objects) {
	t.Helper()
	for name, text := range texts {
		if strings.HasSuffix(name, "NOTES.txt") {
			continue
		}
		for _, one := range documents(t, text) {
			all.add(t, name, one)
		}
	}
	slices.Sort(all.kinds)
	return all
}

func documents(t *testing.T, text string) (list [][]byte) {
	t.Helper()
	for reader := yaml.NewDocumentDecoder(io.NopCloser(strings.NewReader(text))); ; {
		buffer := make([]byte, 1<<20)
		n, err := reader.Read(buffer)
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		var any map[string]any
		if err := sigsyaml.Unmarshal(buffer[:n], &any); err != nil {
			t.Fatalf("%v\n%s", err, buffer[:n])
		}
		if len(any) > 0 {
			list = append(list, bytes.Clone(buffer[:n]))
		}
	}
}

func (o *objects) add(t *testing.T, name string, text []byte) {
	t.Helper()
	var kind metav1.TypeMeta
	if err := sigsyaml.Unmarshal(text, &kind); err != nil {
		t.Fatal(err)
	}
	o.kinds = append(o.kinds, kind.Kind)
	var account corev1.ServiceAccount
	var binding admissionv1.MutatingAdmissionPolicyBinding
	var beta admissionv1beta1.MutatingAdmissionPolicy
	var betaBinding admissionv1beta1.MutatingAdmissionPolicyBinding
	var validation admissionv1.ValidatingAdmissionPolicyBinding
	var config corev1.ConfigMap
	into := map[string]any{"v1 ServiceAccount": &account, "v1 ConfigMap": &config,
		"admissionregistration.k8s.io/v1 ValidatingAdmissionPolicyBinding": &validation,
		"admissionregistration.k8s.io/v1 MutatingAdmissionPolicyBinding":   &binding, "admissionregistration.k8s.io/v1beta1 MutatingAdmissionPolicy": &beta,
		"admissionregistration.k8s.io/v1beta1 MutatingAdmissionPolicyBinding": &betaBinding}
	add := func(key string, to any) { into[key] = to }
	switch kind.Kind {
	case "DaemonSet":
		o.daemonSet = &appsv1.DaemonSet{}
		add("apps/v1 DaemonSet", o.daemonSet)
	case "MutatingAdmissionPolicy":
		o.policy = &admissionv1.MutatingAdmissionPolicy{}
		add("admissionregistration.k8s.io/v1 MutatingAdmissionPolicy", o.policy)
	case "ValidatingAdmissionPolicy":
		o.validating = &admissionv1.ValidatingAdmissionPolicy{}
		add("admissionregistration.k8s.io/v1 ValidatingAdmissionPolicy", o.validating)
	case "Namespace":
		o.namespace = &corev1.Namespace{}
		add("v1 Namespace", o.namespace)
	case "NetworkPolicy":
		o.network = &networkingv1.NetworkPolicy{}
		add("networking.k8s.io/v1 NetworkPolicy", o.network)
	case "PodMonitor":
		o.monitor = &monitoringv1.PodMonitor{}
		add("monitoring.coreos.com/v1 PodMonitor", o.monitor)
	case "PrometheusRule":
		o.rules = &monitoringv1.PrometheusRule{}
		add("monitoring.coreos.com/v1 PrometheusRule", o.rules)
	case "SecurityContextConstraints":
		o.constraint = &SecurityContextConstraints{}
		add("security.openshift.io/v1 SecurityContextConstraints", o.constraint)
	}
	to, known := into[kind.APIVersion+" "+kind.Kind]
	if !known {
		t.Fatalf("%s: %s %s is no kind that the chart may make", name, kind.APIVersion, kind.Kind)
	}
	if err := sigsyaml.UnmarshalStrict(text, to); err != nil {
		t.Fatalf("%s: %s: %v\n%s", name, kind.Kind, err, text)
	}
	if kind.Kind == "ServiceAccount" && (account.AutomountServiceAccountToken == nil || *account.AutomountServiceAccountToken) {
		t.Error("the service account has a token")
	}
	if kind.Kind == "MutatingAdmissionPolicyBinding" && binding.Spec.PolicyName+betaBinding.Spec.PolicyName != "node-gpreempt-gpreempt-system" {
		t.Errorf("the binding is of %q", binding.Spec.PolicyName)
	}
	if kind.Kind == "ValidatingAdmissionPolicyBinding" {
		if o.validation = validation.Spec.ValidationActions; validation.Spec.PolicyName != "node-gpreempt-gpreempt-system" {
			t.Errorf("the binding is of %q", validation.Spec.PolicyName)
		}
	}
	if kind.Kind == "ConfigMap" {
		if strings.HasSuffix(config.Name, "-board") {
			o.board = &config
		} else {
			o.config = config.Data
		}
	}
}

var paths = map[string]string{"default": "/opt/gpreempt", "talos": "/var/lib/gpreempt", "bottlerocket": "/var/lib/gpreempt", "cos": "/home/kubernetes/bin/gpreempt"}

// Every preset, with and without each part, is what Kubernetes' own types take, and has the rights that it needs and no more.
func TestEveryPreset(t *testing.T) {
	for preset, path := range paths {
		for bits := range 1 << 4 {
			openshift, plugin, metrics, watched := bits&1 != 0, bits&2 != 0, bits&4 != 0, bits&8 != 0
			settings := []string{"host.preset=" + preset, fmt.Sprintf("openshift.enabled=%v", openshift), fmt.Sprintf("nri.enabled=%v", plugin),
				fmt.Sprintf("metrics.enabled=%v", metrics), fmt.Sprintf("namespace.create=%v", watched), fmt.Sprintf("metrics.podMonitor.enabled=%v", watched),
				fmt.Sprintf("metrics.rules.enabled=%v", watched), fmt.Sprintf("metrics.dashboard.enabled=%v", watched)}
			name := strings.Join(settings, " ")
			texts, err := render(t, apis, settings...)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			o := decode(t, texts)
			want := []string{"ConfigMap", "DaemonSet", "ServiceAccount"}
			for kind, is := range map[string]bool{"SecurityContextConstraints": openshift, "NetworkPolicy": plugin || metrics, "Namespace": watched,
				"PodMonitor": watched && (plugin || metrics), "PrometheusRule": watched && (plugin || metrics)} {
				if is {
					want = append(want, kind)
				}
			}
			if watched && metrics {
				want = append(want, "ConfigMap")
			}
			if slices.Sort(want); !slices.Equal(o.kinds, want) {
				t.Errorf("%s: %q, must be %q", name, o.kinds, want)
			}
			checkPod(t, name, o, path, openshift, plugin, metrics)
			checkConfig(t, name, o, plugin)
			if watched {
				checkMonitoring(t, name, o, plugin, metrics)
			}
		}
	}
}

func checkPod(t *testing.T, name string, o objects, path string, openshift, plugin, metrics bool) {
	t.Helper()
	d, pod := o.daemonSet, o.daemonSet.Spec.Template.Spec
	if d.Name != "node-gpreempt" || d.Namespace != namespace || pod.ServiceAccountName != d.Name || pod.HostNetwork || pod.HostIPC || !pod.HostPID ||
		pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken || d.Spec.UpdateStrategy.RollingUpdate.MaxSurge.IntValue() != 0 {
		t.Errorf("%s: %+v", name, pod)
	}
	for key, value := range d.Spec.Selector.MatchLabels {
		if d.Spec.Template.Labels[key] != value {
			t.Errorf("%s: the selector has %s, and pods have %q", name, key, d.Spec.Template.Labels)
		}
	}
	selinux := pod.SecurityContext.SELinuxOptions
	if pod.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault || openshift != (selinux != nil) || openshift && selinux.Type != "spc_t" {
		t.Errorf("%s: %+v", name, pod.SecurityContext)
	}
	names := []string{"broker"}
	folders := map[string]string{"library": path, "sockets": "/run/gpreempt"}
	if plugin {
		names, folders["nri"], folders["pods"] = append(names, "nri"), "/var/run/nri", "/run/gpreempt/pods"
	}
	if metrics {
		names = append(names, "metrics")
	}
	writable := map[string]string{"install": "library", "broker": "sockets", "nri": "pods"} // what each may write of the host's
	var there []string
	volumes := map[string]corev1.VolumeSource{}
	for _, v := range pod.Volumes {
		volumes[v.Name] = v.VolumeSource
		if want := folders[v.Name]; (v.HostPath != nil) != (want != "") || v.HostPath != nil && (v.HostPath.Path != want || *v.HostPath.Type != corev1.HostPathDirectoryOrCreate) {
			t.Errorf("%s: volume %s: %+v", name, v.Name, v.VolumeSource)
		}
	}
	for i, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		if i > 0 {
			there = append(there, c.Name)
		}
		s := c.SecurityContext
		if s.Privileged != nil || *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || *s.RunAsUser != 0 ||
			!slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(s.Capabilities.Add) > 0 {
			t.Errorf("%s: %s: %+v", name, c.Name, s)
		}
		if c.Image != image+":"+load(t).Metadata.AppVersion || c.Resources.Limits.Memory().IsZero() || i > 0 && c.ReadinessProbe == nil || len(c.Env) > 0 {
			t.Errorf("%s: %s: %+v", name, c.Name, c)
		}
		for _, m := range c.VolumeMounts {
			v, is := volumes[m.Name]
			if !is || v.HostPath != nil && (m.MountPath != v.HostPath.Path || m.ReadOnly == (writable[c.Name] == m.Name)) {
				t.Errorf("%s: %s mounts %+v", name, c.Name, m)
			}
		}
	}
	if !slices.Equal(there, names) {
		t.Errorf("%s: containers %q", name, there)
	}
	for _, c := range pod.Containers { // who says of which pod containers are, and who hears it
		i := slices.Index(c.Command, "--pods")
		if (i > 0) != plugin || plugin && c.Command[i+1] != volumes["pods"].HostPath.Path {
			t.Errorf("%s: %s: %q", name, c.Name, c.Command)
		}
	}
	if openshift {
		if c := o.constraint; c.AllowPrivilegedContainer || c.AllowHostNetwork || c.AllowHostIPC || c.AllowHostPorts || len(c.AllowedCapabilities) > 0 ||
			!slices.Equal(c.Users, []string{"system:serviceaccount:" + namespace + ":" + pod.ServiceAccountName}) || c.SELinuxContext.SELinuxOptions.Type != "spc_t" {
			t.Errorf("%s: %+v", name, c)
		}
	}
	if o.namespace != nil && (o.namespace.Name != namespace || o.namespace.Labels["pod-security.kubernetes.io/enforce"] != "privileged") {
		t.Errorf("%s: %+v", name, o.namespace)
	}
}

// checkConfig gives the files to those that read them.
func checkConfig(t *testing.T, name string, o objects, plugin bool) {
	t.Helper()
	p, err := policy.Parse("policy.toml", []byte(o.config["policy.toml"]))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	id := strings.Repeat("0123456789abcdef", 4)
	for facts, want := range map[*policy.Facts]int{
		{Cgroup: "/../../kubepods-burstable-pod1.slice/cri-containerd-" + id + ".scope", Container: id}: 0,
		{Cgroup: "/../../../../user.slice/user-1000.slice/" + id, Container: id}:                        7,
		{Cgroup: "/system.slice/x.service"}:                                                             7,
	} {
		if grant, err := p.Grant(*facts); err != nil || grant.Level != want || !grant.Admit {
			t.Errorf("%s: %+v gets %+v, %v", name, facts, grant, err)
		}
	}
	text, there := o.config["nri.toml"]
	if there != plugin {
		t.Errorf("%s: nri.toml: %v", name, there)
	}
	if _, err := nri.Parse("nri.toml", []byte(text)); err != nil {
		t.Errorf("%s: %v", name, err)
	}
}

func checkMonitoring(t *testing.T, name string, o objects, plugin, metrics bool) {
	t.Helper()
	ports := map[string]bool{}
	for _, c := range o.daemonSet.Spec.Template.Spec.Containers {
		for _, p := range c.Ports {
			ports[p.Name] = true
		}
	}
	if ports["metrics"] != metrics || ports["nri"] != plugin {
		t.Errorf("%s: ports %v", name, ports)
	}
	if !metrics && !plugin {
		return
	}
	if len(o.monitor.Spec.PodMetricsEndpoints) != len(ports) || len(o.network.Spec.Ingress[0].Ports) != len(ports) || len(o.network.Spec.Ingress[0].From) != 1 || len(o.network.Spec.Egress) != 0 {
		t.Errorf("%s: %+v, %+v", name, o.monitor.Spec, o.network.Spec)
	}
	for _, e := range o.monitor.Spec.PodMetricsEndpoints {
		if !ports[*e.Port] {
			t.Errorf("%s: no port %s", name, *e.Port)
		}
	}
	for _, p := range o.network.Spec.Ingress[0].Ports {
		if !ports[p.Port.StrVal] {
			t.Errorf("%s: no port %s", name, p.Port)
		}
	}
	var groups []string
	for _, g := range o.rules.Spec.Groups {
		groups = append(groups, g.Name)
	}
	var want []string
	if metrics {
		want = append(want, "gpreempt")
	}
	if plugin {
		want = append(want, "gpreempt-nri")
	}
	if !slices.Equal(groups, want) {
		t.Errorf("%s: rules %q", name, groups)
	}
	if metrics {
		board, err := os.ReadFile("../api/metrics/board.json")
		if err != nil || o.board.Data["gpreempt.json"] != string(board) || o.board.Labels["grafana_dashboard"] != "1" {
			t.Errorf("%s: the board is another one: %v", name, err)
		}
	}
}

// The container that looks for programs without gpreempt is off, or sees all GPUs by the runtime that a RuntimeClass names. It has no more
// rights.
func TestOthers(t *testing.T) {
	for runtimeClass, settings := range map[string][]string{"off": nil, "nvidia": {"others.enabled=true"}, "": {"others.enabled=true", `others.runtimeClassName=""`}} {
		texts, err := render(t, nil, settings...)
		if err != nil {
			t.Fatal(err)
		}
		spec := decode(t, texts).daemonSet.Spec.Template.Spec
		on := runtimeClass != "off"
		if named := spec.RuntimeClassName; (named != nil) != (on && runtimeClass != "") || named != nil && *named != runtimeClass {
			t.Errorf("%s: the runtime class is %v", runtimeClass, named)
		}
		for _, c := range spec.Containers {
			looks := c.Name == "broker" || c.Name == "metrics"
			if says := slices.Contains(c.Command, fmt.Sprintf("--others=%t", on)); says != looks {
				t.Errorf("%s: %s: %q", runtimeClass, c.Name, c.Command)
			}
			sees := slices.Contains(c.Env, corev1.EnvVar{Name: "NVIDIA_VISIBLE_DEVICES", Value: "all"}) && slices.Contains(c.Env, corev1.EnvVar{Name: "NVIDIA_DRIVER_CAPABILITIES", Value: "utility"})
			if sees != (looks && on) || !sees && len(c.Env) != 0 {
				t.Errorf("%s: %s: %v", runtimeClass, c.Name, c.Env)
			}
			if s := c.SecurityContext; *s.AllowPrivilegeEscalation || s.Privileged != nil || len(s.Capabilities.Add) != 0 {
				t.Errorf("%s: %s: %v", runtimeClass, c.Name, s)
			}
		}
		for _, c := range spec.InitContainers {
			if len(c.Env) != 0 {
				t.Errorf("%s: %s: %v", runtimeClass, c.Name, c.Env)
			}
		}
	}
}

// Values that the schema does not know, or that make no sense, are refused.
func TestSchemaRefuses(t *testing.T) {
	for _, setting := range []string{
		"speed=1", "others.enabled=1", "others.runtimeClassName=A", "image.name=x", "image.digest=sha256:1", "image.pullPolicy=Sometimes", "host.preset=windows", "host.path=opt", "host.path=/", `host.path="/a b"`, "roles.default.level=off",
		"roles.default.best=lc", "roles.namespaces.prod.level=8", "roles.namespaces.Prod.level=be", "roles.exclude=[A_b]", "roles.priorityClasses.high=fast", "roles.validate=loud", "nri.enabled=1", "nri.logLevel=loud",
		"nri.socketDirectory=run", "broker.resources.limit={}", "broker.polciy=x", "metrics.podMonitor.interval=soon", "metrics.networkPolicy.to={}", "metrics.rules.on=true", "namespace.name=x",
		"openshift.scc=true", "daemonSet.hostNetwork=true", "daemonSet.labels={a: 1}", "image.pullSecrets=[a]",
		"daemonSet.maxUnavailable=0", `daemonSet.maxUnavailable="0%"`, "daemonSet.maxUnavailable=all", "daemonSet.maxUnavailable=-1", "host.path=/a/../b", "host.path=//", "host.path=/etc",
	} {
		if _, err := render(t, apis, setting); err == nil || !strings.Contains(err.Error(), "specification") && !strings.Contains(err.Error(), "schema") {
			t.Errorf("%s: %v", setting, err)
		}
	}
	if _, err := render(t, apis, "global={a: 1}", `daemonSet.maxUnavailable="10%"`, "image.digest=sha256:"+strings.Repeat("0", 64), "roles.default.level=0"); err != nil {
		t.Error(err)
	}
	// Every value has a line in the schema, and the other way round.
	values, schemas := load(t).Values, map[string]any{}
	if err := sigsyaml.Unmarshal(load(t).Schema, &schemas); err != nil {
		t.Fatal(err)
	}
	for name := range schemas["properties"].(map[string]any) {
		if _, is := values[name]; !is && name != "global" {
			t.Errorf("values.yaml lacks %s", name)
		}
	}
}

// The plugin reads the same of roles as the values say.
func TestRoles(t *testing.T) {
	texts, err := render(t, apis, "roles.default={level: 0, role: 5}", `roles.namespaces={prod: {level: lc}, batch: {level: "3", role: be}, team.a: {role: 0}}`, "roles.exclude=[monitoring]")
	if err != nil {
		t.Fatal(err)
	}
	o := decode(t, texts)
	c, err := nri.Parse("nri.toml", []byte(o.config["nri.toml"]))
	if err != nil {
		t.Fatalf("%v\n%s", err, o.config["nri.toml"])
	}
	if c.Default != (nri.Rule{Best: 0, Role: 5}) || len(c.Namespaces) != 3 || c.Namespaces["prod"] != (nri.Rule{Best: 0, Role: 5}) || c.Namespaces["batch"] != (nri.Rule{Best: 3, Role: 7}) ||
		c.Namespaces["team.a"] != (nri.Rule{Best: 0, Role: 0}) || !slices.Contains(c.Excluded, "monitoring") {
		t.Errorf("%+v", c)
	}
	if texts, err = render(t, apis, "roles.exclude=null"); err != nil { // takes the default away
		t.Fatal(err)
	}
	if _, err := nri.Parse("nri.toml", []byte(decode(t, texts).config["nri.toml"])); err != nil {
		t.Errorf("nothing to exclude: %v", err)
	}
	command := o.daemonSet.Spec.Template.Spec.Containers[1].Command
	if i := slices.Index(command, "--exclude"); i < 0 || command[i+1] != namespace {
		t.Errorf("its own namespace is not left alone: %q", command)
	}
}

// Another file of settings is another pod template, so that pods are started with it.
func TestConfigurationStartsPods(t *testing.T) {
	sum := func(settings ...string) string {
		texts, err := render(t, apis, settings...)
		if err != nil {
			t.Fatal(err)
		}
		return decode(t, texts).daemonSet.Spec.Template.Annotations["checksum/config"]
	}
	if one, two := sum(), sum("roles.default.level=lc"); one == "" || one == two || sum() != one {
		t.Errorf("%s, %s", one, two)
	}
}

// The API server's own evaluation of the policy: pods of a class get its role, unless they say one.
func TestPriorityClasses(t *testing.T) {
	settings := []string{`roles.priorityClasses={critical: lc, "low": be, "middle": 3}`}
	for version, has := range map[string][]string{"v1": apis, "v1beta1": apis[1:]} {
		texts, err := render(t, has, settings...)
		if err != nil {
			t.Fatal(err)
		}
		if text := texts["gpreempt/templates/admission.yaml"]; strings.Count(text, "\napiVersion: admissionregistration.k8s.io/"+version+"\n") != 2 {
			t.Errorf("%s", text)
		}
		decode(t, texts)
	}
	if _, err := render(t, nil, settings...); err == nil || !strings.Contains(err.Error(), "has no MutatingAdmissionPolicy") {
		t.Errorf("a cluster without: %v", err)
	}
	if texts, err := render(t, nil); err != nil || decode(t, texts).policy != nil {
		t.Errorf("without classes: %v", err)
	}
	texts, err := render(t, apis, settings...)
	if err != nil {
		t.Fatal(err)
	}
	p := newPolicy(t, decode(t, texts).policy)
	for _, c := range []struct {
		class, says, want string
	}{{"critical", "", "lc"}, {"low", "", "be"}, {"middle", "", "3"}, {"low", "lc", "lc"}, {"other", "", ""}, {"", "", ""}, {"", "be", "be"}} {
		for _, others := range []bool{false, true} {
			pod := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n"},
				Spec: corev1.PodSpec{PriorityClassName: c.class, Containers: []corev1.Container{{Name: "main", Image: "i"}}}}
			if others {
				pod.Annotations = map[string]string{"other": "1"}
			}
			if c.says != "" {
				pod.Annotations = map[string]string{"gpreempt.io/role": c.says}
			}
			after := p.admit(t, pod)
			if after.Annotations["gpreempt.io/role"] != c.want || others && c.says == "" && after.Annotations["other"] != "1" || after.Spec.PriorityClassName != c.class {
				t.Errorf("%+v: %+v", c, after.ObjectMeta)
			}
		}
	}
}

const validatingAPI = "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"

// The API server's own evaluation of pods' objectives and limits. It refuses the same values as the library, and names annotation, value and
// what is allowed.
func TestAnnotationsAreValidated(t *testing.T) {
	for setting, want := range map[string][]admissionv1.ValidationAction{"warn": {admissionv1.Warn, admissionv1.Audit}, "deny": {admissionv1.Deny}, "ignore": nil} {
		texts, err := render(t, []string{validatingAPI}, "roles.validate="+setting)
		if err != nil {
			t.Fatal(err)
		}
		if o := decode(t, texts); !slices.Equal(o.validation, want) || (o.validating != nil) != (want != nil) {
			t.Errorf("%s: %q, %+v", setting, o.validation, o.validating)
		}
	}
	if texts, err := render(t, apis); err != nil || decode(t, texts).validating != nil {
		t.Errorf("a cluster without: %v", err)
	}
	texts, err := render(t, []string{validatingAPI})
	if err != nil {
		t.Fatal(err)
	}
	v := newValidator(t, decode(t, texts).validating)
	values := []string{"none", "slowdown=1.5", "slowdown=1", "slowdown=20", "slowdown=20.5", "slowdown=0.99", "slowdown=", "slowdown", "slowdown=x", "slowdown=1.5.2", "step=20ms", "step=20",
		"step=100us", "step=99us", "step=60s", "step=61s", "step=1m", "step=2m", "step=0.5s", "step=1h", "step=-1ms", "step=1s500ms", "first=200ms,step=25ms,p=99", "p=99.9,slowdown=2,first=1s", "first=200ms", "p=99", "",
		"slowdown=2,step=20ms", "step=1ms,step=2ms", "step=1ms,first=1s,first=1s", "step=1ms,p=50,p=60", "step=1ms,p=49", "step=1ms,p=100", "step=1ms,p=99.99", "step=1ms,", ",step=1ms", "step=1ms,most=3", "None", "step=1ms;p=99", "none,step=1ms", "step=20ms\n", "p=50,slowdown=1.0"}
	for _, value := range values {
		_, wrong := configs.ParseObjective(configs.Objective{}, value)
		for key, other := range map[string]string{nri.ObjectiveAnnotation: "other", nri.ContainerObjective + "main": nri.RoleAnnotation} {
			message := v.admit(t, map[string]string{key: value, other: "x"})
			if wrong == nil && message != "" {
				t.Errorf("%s = %q: %s", key, value, message)
			}
			if want := fmt.Sprintf("annotation %s: objective %q: must be %s", key, value, configs.ObjectiveAllowed); wrong != nil && message != want && !strings.Contains(value, "\n") {
				t.Errorf("%s = %q: %q, must be %q", key, value, message, want)
			}
			if wrong != nil && message == "" {
				t.Errorf("%s = %q is taken: %v", key, value, wrong)
			}
		}
	}
	for _, value := range []string{"none", "40%", "1%", "100%", "101%", "0%", "040%", "10GB", "10240MB", "10MB", "0MB", "10", "10 GB", "10gb", "1.5GB", "-1GB", "10GB,", "", "GB", "%", "99999999MB"} {
		_, wrong := configs.ParseOwnMemoryLimit(value)
		for key, other := range map[string]string{nri.MemoryAnnotation: "other", nri.ContainerMemory + "main": nri.RoleAnnotation} {
			message, want := v.admit(t, map[string]string{key: value, other: "x"}), ""
			if wrong != nil {
				want = fmt.Sprintf("annotation %s: %v", key, wrong)
			}
			if message != want {
				t.Errorf("%s = %q: %q, must be %q", key, value, message, want)
			}
		}
	}
	if message := v.admit(t, nil); message != "" {
		t.Errorf("without annotations: %s", message)
	}
}

// validator is a policy as the API server evaluates it.
type validator struct{ validating.Validator }

func newValidator(t *testing.T, p *admissionv1.ValidatingAdmissionPolicy) validator {
	t.Helper()
	compiler, err := plugincel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		t.Fatal(err)
	}
	var variables []plugincel.NamedExpressionAccessor
	for _, v := range p.Spec.Variables {
		variables = append(variables, &validating.Variable{Name: v.Name, Expression: v.Expression})
	}
	declared := plugincel.OptionalVariableDeclarations{HasAuthorizer: true}
	compiler.CompileAndStoreVariables(variables, declared, environment.StoredExpressions)
	var conditions, messages []plugincel.ExpressionAccessor
	for _, v := range p.Spec.Validations {
		conditions = append(conditions, &validating.ValidationCondition{Expression: v.Expression})
		messages = append(messages, &validating.MessageExpressionCondition{MessageExpression: v.MessageExpression})
	}
	fail := admissionv1.Fail // so that a mistake is seen; the chart's own is Ignore
	return validator{validating.NewValidator(compiler.CompileCondition(conditions, declared, environment.StoredExpressions), nil,
		compiler.CompileCondition(nil, declared, environment.StoredExpressions),
		compiler.CompileCondition(messages, plugincel.OptionalVariableDeclarations{}, environment.StoredExpressions), &fail, nil)}
}

// admit returns the answer to whoever makes a pod with these annotations; "": no message.
func (v validator) admit(t *testing.T, annotations map[string]string) string {
	t.Helper()
	pod := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n", Annotations: annotations}}
	attributes := &admission.VersionedAttributes{VersionedKind: podKind, VersionedObject: admission.NewLazyObject(pod), VersionedOldObject: admission.NewLazyObject(nil),
		Attributes: admission.NewAttributesRecord(pod, nil, podKind, pod.Namespace, pod.Name, podResource, "", admission.Create, &metav1.CreateOptions{}, false, nil)}
	result := v.Validate(t.Context(), podResource, attributes, nil, nil, celconfig.RuntimeCELCostBudget, nil)
	if len(result.Decisions) != 2 {
		t.Fatalf("%q: %+v", annotations, result)
	}
	var messages []string
	for _, d := range result.Decisions {
		if d.Action == validating.ActionAdmit {
			continue
		}
		if d.Evaluation != validating.EvalDeny {
			t.Errorf("%q cannot be evaluated: %s", annotations, d.Message)
		}
		messages = append(messages, d.Message)
	}
	return strings.Join(messages, "; ")
}

// examples are what a document says to apply.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob("gpreempt/examples/*.yaml")
	if err != nil || len(files) < 2 {
		t.Fatalf("%q, %v", files, err)
	}
	roles := map[string]int{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range documents(t, string(text)) {
			var kind metav1.TypeMeta
			if err := sigsyaml.Unmarshal(one, &kind); err != nil {
				t.Fatal(err)
			}
			var template corev1.PodTemplateSpec
			var err error
			switch kind.APIVersion + " " + kind.Kind {
			case "apps/v1 Deployment":
				var d appsv1.Deployment
				err, template = sigsyaml.UnmarshalStrict(one, &d), d.Spec.Template
			case "batch/v1 Job":
				var j batchv1.Job
				err, template = sigsyaml.UnmarshalStrict(one, &j), j.Spec.Template
			case "v1 Namespace":
				err = sigsyaml.UnmarshalStrict(one, &corev1.Namespace{})
			default:
				t.Fatalf("%s: %s %s", file, kind.APIVersion, kind.Kind)
			}
			if err != nil {
				t.Errorf("%s: %v", file, err)
			}
			roles[template.Annotations["gpreempt.io/role"]]++
		}
	}
	if roles["lc"] == 0 || roles["be"] == 0 {
		t.Errorf("the examples have roles %v", roles)
	}
}

// The pods' commands are in the image, which has the package's files below /usr.
func TestCommandsAreInTheImage(t *testing.T) {
	var list []byte
	for _, name := range []string{"gpreempt.files", "gpreemptd.files"} {
		text, err := os.ReadFile(filepath.Join("../packaging", name))
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, text...)
	}
	texts, err := render(t, apis)
	if err != nil {
		t.Fatal(err)
	}
	pod := decode(t, texts).daemonSet.Spec.Template.Spec
	commands := 0
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		all := [][]string{c.Command}
		for _, p := range []*corev1.Probe{c.ReadinessProbe, c.LivenessProbe} {
			if p != nil {
				all = append(all, p.Exec.Command)
			}
		}
		for _, command := range all {
			commands++
			// A flag that the program does not know is an error, with --help too.
			program := exec.Command(filepath.Join("../build", filepath.Base(command[0])), append(command[1:len(command):len(command)], "--help")...)
			if out, err := program.CombinedOutput(); err != nil {
				t.Errorf("%s: %q (make first): %v %s", c.Name, program.Args, err, out)
			}
			if place, below := strings.CutPrefix(command[0], "/usr/"); !below || !regexp.MustCompile(`(?m)^0755 BUILT/\S+ +`+regexp.QuoteMeta(place)+`$`).Match(list) {
				t.Errorf("%s: %s is not in the image", c.Name, command[0])
			}
		}
	}
	if commands < 8 {
		t.Errorf("%d commands", commands)
	}
}

var tag = regexp.MustCompile(`^\d+\.\d+\.\d+$`)

func TestMetadata(t *testing.T) {
	c := load(t)
	if err := c.Validate(); err != nil || !tag.MatchString(c.Metadata.Version) || !tag.MatchString(c.Metadata.AppVersion) {
		t.Errorf("%v, %+v", err, c.Metadata)
	}
	texts, err := render(t, apis, "roles.default.level=3")
	if err != nil || !strings.Contains(texts["gpreempt/templates/NOTES.txt"], "others 3.") {
		t.Errorf("%v, %s", err, texts["gpreempt/templates/NOTES.txt"])
	}
}

// mutating is a policy as the API server evaluates it.
type mutating struct {
	match    matchconditions.Matcher
	patchers []patch.Patcher
	types    patch.TypeConverterManager
}

var podKind, podResource = corev1.SchemeGroupVersion.WithKind("Pod"), corev1.SchemeGroupVersion.WithResource("pods")

func newPolicy(t *testing.T, p *admissionv1.MutatingAdmissionPolicy) *mutating {
	t.Helper()
	compiler, err := plugincel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		t.Fatal(err)
	}
	conditions := make([]plugincel.ExpressionAccessor, len(p.Spec.MatchConditions))
	for i := range p.Spec.MatchConditions {
		conditions[i] = (*matchconditions.MatchCondition)(&p.Spec.MatchConditions[i])
	}
	fail := admissionv1.Fail // so that a mistake is seen; the chart's own is Ignore
	m := &mutating{types: patch.NewTypeConverterManager(nil, openapitest.NewEmbeddedFileClient())}
	m.match = matchconditions.NewMatcher(compiler.CompileCondition(conditions, plugincel.OptionalVariableDeclarations{}, environment.StoredExpressions), &fail, "policy", "mutate", p.Name)
	for _, mutation := range p.Spec.Mutations {
		condition := &patch.ApplyConfigurationCondition{Expression: mutation.ApplyConfiguration.Expression}
		compiled := compiler.CompileMutatingEvaluator(condition, plugincel.OptionalVariableDeclarations{HasPatchTypes: true}, environment.StoredExpressions)
		if err := compiled.CompilationErrors(); len(err) > 0 {
			t.Fatalf("%s: %v", condition.Expression, err)
		}
		m.patchers = append(m.patchers, patch.NewApplyConfigurationPatcher(compiled))
	}
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	go m.types.Run(ctx)
	return m
}

func (m *mutating) admit(t *testing.T, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	attributes := &admission.VersionedAttributes{VersionedKind: podKind, VersionedObject: admission.NewLazyObject(pod), VersionedOldObject: admission.NewLazyObject(nil),
		Attributes: admission.NewAttributesRecord(pod, nil, podKind, pod.Namespace, pod.Name, podResource, "", admission.Create, &metav1.CreateOptions{}, false, nil)}
	result := m.match.Match(t.Context(), attributes, nil, nil)
	if result.Error != nil {
		t.Fatal(result.Error)
	}
	if !result.Matches {
		return pod
	}
	for _, p := range m.patchers {
		after, err := p.Patch(t.Context(), patch.Request{MatchedResource: podResource, VersionedAttributes: attributes,
			ObjectInterfaces: admission.NewObjectInterfacesFromScheme(scheme(t)), TypeConverter: m.converter(t, podKind)}, celconfig.RuntimeCELCostBudget)
		if err != nil {
			t.Fatal(err)
		}
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(after)
		if err != nil {
			t.Fatal(err)
		}
		pod = &corev1.Pod{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(fields, pod, true); err != nil {
			t.Fatal(err)
		}
	}
	return pod
}
