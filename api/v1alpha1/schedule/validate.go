package schedule

import (
	"crypto/x509"
	"regexp"
	"slices"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/internal/fielderr"
	"stoker.io/stoker/api/v1alpha1/syntax"
)

const (
	maxStageGateways = 256
	maxSyncOrder     = 256
	maxWeight        = 1000
	maxBundle        = 16384 // characters of caBundle
	maxURL           = 2048
)

var healthURLRegexp = regexp.MustCompile(`^https?://[^/?#@\s\x00-\x1f\x7f-][^@\s\x00-\x1f\x7f]*$`)

// Validate checks spec.deployment. d may be nil.
func Validate(at *field.Path, d *v1alpha1.DeploymentSpec) field.ErrorList {
	if d == nil {
		return nil
	}
	_, errs := ParseWindows(d.Windows)
	if len(d.Stages) > v1alpha1.MaxStages {
		return append(errs, field.TooMany(at.Child("stages"), len(d.Stages), v1alpha1.MaxStages))
	}
	if comparisons(d) > maxComparisons {
		return append(errs, field.Forbidden(at, "has too many names for the size of its patterns in stages and syncOrder: use fewer or shorter patterns with '*'"))
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
		errs = append(errs, fielderr.Invalid(at.Child("name"), s.Name, "use at most 63 lower-case letters, digits and '-', a letter or digit first and last"))
	}
	if s.Name == v1alpha1.WindowApproval {
		errs = append(errs, fielderr.Invalid(at.Child("name"), s.Name, "stands for the maintenance windows in approvals: use another name"))
	}
	if slices.ContainsFunc(stages[:i], func(other v1alpha1.Stage) bool { return other.Name == s.Name }) {
		errs = append(errs, field.Duplicate(at.Child("name"), fielderr.Shorten(s.Name)))
	}
	switch n := len(s.Gateways); {
	case n == 0:
		errs = append(errs, field.Required(at.Child("gateways"), "name the gateways of the stage, or patterns with '*'"))
	case n > maxStageGateways:
		errs = append(errs, field.TooMany(at.Child("gateways"), n, maxStageGateways))
	}
	for j, name := range s.Gateways { // names of earlier stages may be here, too: the first stage that names a gateway counts
		errs = append(errs, validateGatewayPattern(at.Child("gateways").Index(j), name)...)
	}
	if w := s.PostSyncWait; w != "" {
		if _, problem := syntax.ParseDuration(w, 0, v1alpha1.MaxSoak); problem != "" {
			errs = append(errs, fielderr.Invalid(at.Child("postSyncWait"), w, problem))
		}
	}
	return append(errs, validateHealthCheck(at.Child("healthCheck"), s.HealthCheck)...)
}

// validateHealthURL checks the URL of a health check. The error does not contain it, because it may have a password.
func validateHealthURL(at *field.Path, url string) field.ErrorList {
	if utf8.RuneCountInString(url) > maxURL || !healthURLRegexp.MatchString(url) {
		return field.ErrorList{field.Invalid(at, "", "use http:// or https:// and a host, without a user: such as http://dev-gateway:8088/StatusPing")}
	}
	return nil
}

func validateHealthCheck(at *field.Path, c *v1alpha1.HealthCheck) field.ErrorList {
	if c == nil {
		return nil
	}
	errs := validateHealthURL(at.Child("url"), c.URL)
	if c.ExpectedStatus != 0 && (c.ExpectedStatus < 100 || c.ExpectedStatus > 599) {
		errs = append(errs, field.Invalid(at.Child("expectedStatus"), c.ExpectedStatus, "use a status code from 100 to 599"))
	}
	if c.FailureThreshold < 0 || c.FailureThreshold > 100 {
		errs = append(errs, field.Invalid(at.Child("failureThreshold"), c.FailureThreshold, "use from 1 to 100"))
	}
	if c.Timeout != "" {
		if _, problem := syntax.ParseDuration(c.Timeout, v1alpha1.MinDuration, v1alpha1.MaxHealthCheckTimeout); problem != "" {
			errs = append(errs, fielderr.Invalid(at.Child("timeout"), c.Timeout, problem))
		}
	}
	switch {
	case utf8.RuneCountInString(c.CABundle) > maxBundle:
		errs = append(errs, field.TooLongCharacters(at.Child("caBundle"), "", maxBundle))
	case c.CABundle != "" && !x509.NewCertPool().AppendCertsFromPEM([]byte(c.CABundle)):
		errs = append(errs, field.Invalid(at.Child("caBundle"), "", "contains no certificate; write certificates as PEM"))
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
			errs = append(errs, field.Duplicate(entry.Child("name"), fielderr.Shorten(e.Name)))
		}
		names[e.Name] = true
		if e.Weight != nil && (*e.Weight < 0 || *e.Weight > maxWeight) {
			errs = append(errs, field.Invalid(entry.Child("weight"), *e.Weight, "use from 0 to 1000"))
		}
	}
	return errs
}
