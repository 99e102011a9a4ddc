package schedule

import (
	"cmp"
	"crypto/x509"
	"regexp"
	"slices"
	"time"
	_ "time/tzdata" // images have no time zones
	"unicode/utf8"

	"github.com/robfig/cron/v3"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/internal/fielderr"
	"stoker.io/stoker/api/v1alpha1/syntax"
)

// Windows are the parsed maintenance windows of a gateway. The zero value allows syncs at any time.
type Windows []window

// window is a parsed MaintenanceWindow.
type window struct {
	name     string
	allow    bool
	schedule cron.Schedule
	duration time.Duration
	zone     *time.Location
}

const (
	maxWindows        = 16
	maxWindowGateways = 256
	maxWindowDuration = 168 * time.Hour
)

var (
	nameRegexp     = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	windowSchedule = regexp.MustCompile(`^[-0-9A-Za-z*/,?]+( +[-0-9A-Za-z*/,?]+){4}$`)
	windowZone     = regexp.MustCompile(`^[A-Za-z0-9][-+_/A-Za-z0-9]{0,63}$`)
	gatewayPattern = regexp.MustCompile(`^[-.*A-Za-z0-9_]{1,253}$`)
)

// ParseWindows checks all windows, and returns those of a gateway. names are its name and that of its pod. The errors name the fields.
func ParseWindows(windows []v1alpha1.MaintenanceWindow, names ...string) (Windows, field.ErrorList) {
	at := field.NewPath("spec", "deployment", "windows")
	if len(windows) > maxWindows {
		return nil, field.ErrorList{field.TooMany(at, len(windows), maxWindows)}
	}
	var all Windows
	var errs field.ErrorList
	for i, w := range windows {
		parsed, problems := parseWindow(at.Index(i), &w)
		errs = append(errs, problems...)
		if slices.ContainsFunc(windows[:i], func(v v1alpha1.MaintenanceWindow) bool { return v.Name == w.Name }) {
			errs = append(errs, field.Duplicate(at.Index(i).Child("name"), fielderr.Shorten(w.Name)))
		}
		if len(problems) == 0 && (len(w.Gateways) == 0 || matchesAny(w.Gateways, names...)) {
			all = append(all, parsed)
		}
	}
	return all, errs
}

func parseWindow(at *field.Path, w *v1alpha1.MaintenanceWindow) (window, field.ErrorList) {
	var errs field.ErrorList
	invalid := func(name, value, problem string) {
		errs = append(errs, fielderr.Invalid(at.Child(name), value, problem))
	}
	if !nameRegexp.MatchString(w.Name) {
		invalid("name", w.Name, "use at most 63 lower-case letters, digits and '-'")
	}
	errs = append(errs, fielderr.OneOf(at.Child("kind"), w.Kind, v1alpha1.WindowAllow, v1alpha1.WindowDeny)...)
	out := window{name: w.Name, allow: w.Kind != v1alpha1.WindowDeny}
	var problem string
	if out.duration, problem = syntax.ParseDuration(w.Duration, time.Minute, maxWindowDuration); problem != "" {
		invalid("duration", w.Duration, problem)
	}
	var err error
	if zone := cmp.Or(w.TimeZone, "UTC"); !windowZone.MatchString(zone) || zone == "Local" {
		invalid("timeZone", zone, "use a name such as Europe/Berlin or UTC")
	} else if out.zone, err = time.LoadLocation(zone); err != nil {
		invalid("timeZone", zone, "is not a known time zone; use a name such as Europe/Berlin or UTC")
	}
	const fields = cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow
	if len(w.Schedule) > 128 || !windowSchedule.MatchString(w.Schedule) {
		invalid("schedule", w.Schedule, "use the five fields of a crontab: minute, hour, day, month, day of the week")
	} else if out.schedule, err = cron.NewParser(fields).Parse(w.Schedule); err != nil {
		invalid("schedule", w.Schedule, err.Error())
	} else if out.schedule.Next(time.Unix(0, 0)).IsZero() {
		invalid("schedule", w.Schedule, "names no day that exists")
	}
	if len(w.Gateways) > maxWindowGateways {
		errs = append(errs, field.TooMany(at.Child("gateways"), len(w.Gateways), maxWindowGateways))
	}
	for i, pattern := range w.Gateways {
		if !gatewayPattern.MatchString(pattern) {
			errs = append(errs, fielderr.Invalid(at.Child("gateways").Index(i), pattern, "use the name of a gateway, or a pattern with '*'"))
		}
	}
	return out, errs
}

// active reports whether t is in the window, and when the window next begins or ends. The time is zero if the window never begins again.
func (w *window) active(t time.Time) (bool, time.Time) {
	began := w.schedule.Next(t.Add(-w.duration).In(w.zone))
	if !began.IsZero() && !began.After(t) {
		return true, began.Add(w.duration)
	}
	return false, began
}

// maxChanges limits how far Closed looks ahead, in begins and ends of windows.
const maxChanges = 1000

// Closed returns the name of the window because of which syncs are not allowed at t, and the time when they are allowed again, which is
// zero if unknown. It is the window that denies them, or else the next window that allows them. The name is "" if they are allowed at t.
func (all Windows) Closed(t time.Time) (name string, until time.Time) {
	for range maxChanges {
		window, next := all.closedBy(t)
		if window == "" {
			return name, t
		}
		if name == "" {
			name = window
		}
		if next.IsZero() {
			break
		}
		t = next
	}
	return name, time.Time{}
}

// closedBy returns the name of the window because of which syncs are not allowed at t, and when a window next begins or ends.
func (all Windows) closedBy(t time.Time) (name string, next time.Time) {
	denying, opening := "", ""
	open := !slices.ContainsFunc(all, func(w window) bool { return w.allow })
	var opensAt time.Time // of the window opening
	for i := range all {
		w := &all[i]
		active, changes := w.active(t)
		if !changes.IsZero() && (next.IsZero() || changes.Before(next)) {
			next = changes
		}
		switch {
		case !w.allow && active:
			denying = cmp.Or(denying, w.name)
		case w.allow && active:
			open = true
		case w.allow && (opening == "" || opensAt.IsZero() || !changes.IsZero() && changes.Before(opensAt)):
			opening, opensAt = w.name, changes
		}
	}
	if denying == "" && open {
		return "", next
	}
	return cmp.Or(denying, opening), next
}

const (
	maxStageGateways = 256
	maxSyncOrder     = 256
	maxWeight        = 1000
	maxBundle        = 16384 // bytes of caBundle
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
		errs = append(errs, fielderr.Invalid(at.Child("name"), s.Name, "use at most 63 lower-case letters, digits and '-'"))
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
