package schedule

import (
	"crypto/x509"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/internal/fielderr"
)

const (
	maxStageGateways = 256
	maxSyncOrder     = 256
	maxDependsOn     = 32
	maxWeight        = 1000
	maxBundle        = 16384 // bytes of caBundle
	maxURL           = 2048
)

// Validate checks spec.deployment. d may be nil.
func Validate(at *field.Path, d *v1alpha1.DeploymentSpec) field.ErrorList {
	if d == nil {
		return nil
	}
	_, errs := ParseWindows(d.Windows, "")
	errs = append(errs, fielderr.OneOf(at.Child("strategy"), d.Strategy, v1alpha1.StrategyAllAtOnce, v1alpha1.StrategyCanary)...)
	if d.Strategy == v1alpha1.StrategyCanary && len(d.Stages) == 0 {
		errs = append(errs, field.Required(at.Child("stages"), "strategy canary needs stages: name the gateways that change first"))
	}
	if len(d.Stages) > v1alpha1.MaxStages {
		return append(errs, field.TooMany(at.Child("stages"), len(d.Stages), v1alpha1.MaxStages))
	}
	for i := range d.Stages {
		errs = append(errs, validateStage(at.Child("stages").Index(i), d.Stages, i)...)
	}
	return append(errs, validateSyncOrder(at.Child("syncOrder"), d)...)
}

func validateStage(at *field.Path, stages []v1alpha1.Stage, i int) field.ErrorList {
	var errs field.ErrorList
	s := &stages[i]
	if !nameRegexp.MatchString(s.Name) {
		errs = append(errs, fielderr.Invalid(at.Child("name"), s.Name, "use at most 63 lower-case letters, digits and '-'"))
	}
	if s.Name == v1alpha1.WindowApproval {
		errs = append(errs, fielderr.Invalid(at.Child("name"), s.Name, "stands for the maintenance windows in approvals: use another name"))
	}
	if slices.ContainsFunc(stages[:i], func(other v1alpha1.Stage) bool { return other.Name == s.Name }) {
		errs = append(errs, field.Duplicate(at.Child("name"), s.Name))
	}
	switch n := len(s.Gateways); {
	case n == 0:
		errs = append(errs, field.Required(at.Child("gateways"), "name the gateways of the stage, or patterns with '*'"))
	case n > maxStageGateways:
		errs = append(errs, field.TooMany(at.Child("gateways"), n, maxStageGateways))
	}
	for j, name := range s.Gateways {
		errs = append(errs, validateGatewayPattern(at.Child("gateways").Index(j), name)...)
		if isPattern(name) {
			continue
		}
		for _, earlier := range stages[:i] {
			if matchesAny(earlier.Gateways, name) {
				errs = append(errs, fielderr.Invalid(at.Child("gateways").Index(j), name, "is in stage "+fielderr.Shown(earlier.Name)+" already: name it in one stage"))
			}
		}
	}
	if w := s.PostSyncWait; w != "" {
		if _, problem := v1alpha1.ParseDuration(w, 0, v1alpha1.MaxSoak); problem != "" {
			errs = append(errs, fielderr.Invalid(at.Child("postSyncWait"), w, problem))
		}
	}
	if s.HealthCheckURL != "" && s.HealthCheck != nil {
		errs = append(errs, field.Forbidden(at.Child("healthCheckUrl"), "healthCheck says the same thing: keep one of them"))
	}
	if s.HealthCheckURL != "" {
		errs = append(errs, healthURL(at.Child("healthCheckUrl"), strings.TrimPrefix(s.HealthCheckURL, "GET "), maxURL-len("GET "))...)
	}
	return append(errs, validateHealthCheck(at.Child("healthCheck"), s.HealthCheck)...)
}

func healthURL(at *field.Path, url string, most int) field.ErrorList {
	if utf8.RuneCountInString(url) > most || !healthURLRegexp.MatchString(url) {
		return field.ErrorList{field.Invalid(at, "", "use http:// or https:// and a host, without a user: such as http://dev-gateway:8088/StatusPing")}
	}
	return nil
}

func validateHealthCheck(at *field.Path, c *v1alpha1.HealthCheck) field.ErrorList {
	if c == nil {
		return nil
	}
	errs := healthURL(at.Child("url"), c.URL, maxURL)
	if c.ExpectedStatus != 0 && (c.ExpectedStatus < 100 || c.ExpectedStatus > 599) {
		errs = append(errs, field.Invalid(at.Child("expectedStatus"), c.ExpectedStatus, "use a status code from 100 to 599"))
	}
	if c.FailureThreshold < 0 || c.FailureThreshold > 100 {
		errs = append(errs, field.Invalid(at.Child("failureThreshold"), c.FailureThreshold, "use from 1 to 100"))
	}
	if c.Timeout != "" {
		if _, problem := v1alpha1.ParseDuration(c.Timeout, v1alpha1.MinDuration, v1alpha1.MaxHealthCheckTimeout); problem != "" {
			errs = append(errs, fielderr.Invalid(at.Child("timeout"), c.Timeout, problem))
		}
	}
	switch {
	case utf8.RuneCountInString(c.CABundle) > maxBundle:
		errs = append(errs, field.TooLong(at.Child("caBundle"), "", maxBundle))
	case c.CABundle != "" && !x509.NewCertPool().AppendCertsFromPEM([]byte(c.CABundle)):
		errs = append(errs, field.Invalid(at.Child("caBundle"), "", "holds no certificate; write certificates as PEM"))
	}
	return errs
}

func validateGatewayPattern(at *field.Path, name string) field.ErrorList {
	if !gatewayPattern.MatchString(name) {
		return field.ErrorList{fielderr.Invalid(at, name, "use the name of a gateway, or a pattern with '*'")}
	}
	return nil
}

func validateSyncOrder(at *field.Path, d *v1alpha1.DeploymentSpec) field.ErrorList {
	if len(d.SyncOrder) > maxSyncOrder {
		return field.ErrorList{field.TooMany(at, len(d.SyncOrder), maxSyncOrder)}
	}
	var errs field.ErrorList
	names := make(map[string]bool, len(d.SyncOrder))
	for i, e := range d.SyncOrder {
		entry := at.Index(i)
		errs = append(errs, validateGatewayPattern(entry.Child("name"), e.Name)...)
		if names[e.Name] {
			errs = append(errs, field.Duplicate(entry.Child("name"), fielderr.Shown(e.Name)))
		}
		names[e.Name] = true
		if e.Weight != nil && (*e.Weight < 0 || *e.Weight > maxWeight) {
			errs = append(errs, field.Invalid(entry.Child("weight"), *e.Weight, "use from 0 to 1000"))
		}
		if len(e.DependsOn) > maxDependsOn {
			errs = append(errs, field.TooMany(entry.Child("dependsOn"), len(e.DependsOn), maxDependsOn))
		}
		for j, on := range e.DependsOn {
			errs = append(errs, validateGatewayPattern(entry.Child("dependsOn").Index(j), on)...)
		}
	}
	if len(errs) > 0 {
		return errs
	}
	o := OrderOf(&v1alpha1.GatewaySync{Spec: v1alpha1.GatewaySyncSpec{Deployment: d}})
	if loop := o.loop(); loop != nil {
		return field.ErrorList{field.Invalid(at.Index(loop[0]).Child("dependsOn"), fielderr.Shown(o.entries[loop[0]].name), "depends on itself: "+o.arrows(loop)+"; remove one of them")}
	}
	for i, e := range d.SyncOrder {
		for j, on := range e.DependsOn {
			problem := ""
			switch entry := &o.entries[i]; {
			case isPattern(on) && !names[on]:
				problem = "is a pattern that is not the name of an entry: add it to syncOrder"
			case o.first(on) > o.last(e.Name):
				problem = "changes in a later stage: depend on gateways of the same stage or an earlier one"
			case o.last(on) >= o.first(e.Name) && o.entries[entry.after[j].entry].weight < entry.weight:
				problem = "has a lower weight, so it changes later: raise its weight"
			}
			if problem != "" {
				errs = append(errs, fielderr.Invalid(at.Index(i).Child("dependsOn").Index(j), on, problem))
			}
		}
	}
	return errs
}

const healthURLPattern = `^https?://[^/?#@\s\x00-\x1f\x7f-][^@\s\x00-\x1f\x7f]*$`

var healthURLRegexp = regexp.MustCompile(healthURLPattern)

// loop returns entries that depend on each other in a circle, or nil. The first one has the lowest index.
func (o *Order) loop() []int {
	const (
		entered = iota + 1
		left
	)
	state := make([]int, len(o.entries))
	var path, found []int
	var visit func(int)
	visit = func(i int) {
		state[i], path = entered, append(path, i)
		for _, on := range o.entries[i].after {
			if found == nil && state[on.entry] == entered {
				found = slices.Clone(path[slices.Index(path, on.entry):])
			}
			if found == nil && state[on.entry] == 0 {
				visit(on.entry)
			}
		}
		state[i], path = left, path[:len(path)-1]
	}
	for i := range o.entries {
		if state[i] == 0 && found == nil {
			visit(i)
		}
	}
	if found == nil {
		return nil
	}
	at := slices.Index(found, slices.Min(found))
	return append(found[at:], found[:at]...)
}

// arrows shows a loop, or the first names of a long one.
func (o *Order) arrows(loop []int) string {
	const most = 3
	var names []string
	for _, i := range loop[:min(len(loop), most)] {
		names = append(names, fielderr.Shown(o.entries[i].name))
	}
	if len(loop) > most {
		names = append(names, "…")
	}
	return strings.Join(append(names, names[0]), " → ")
}
