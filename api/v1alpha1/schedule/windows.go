package schedule

import (
	"cmp"
	"regexp"
	"slices"
	"time"
	_ "time/tzdata" // images have no time zones

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
		invalid("name", w.Name, "use at most 63 lower-case letters, digits and '-', a letter or digit first and last")
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
		errs = append(errs, validateGatewayPattern(at.Child("gateways").Index(i), pattern)...)
	}
	return out, errs
}

// active reports whether t is in the window, and when the window next begins or ends. The time is zero if the next beginning is not known. If the
// window begins again before it ends, the end is that of its earliest beginning.
func (w *window) active(t time.Time) (bool, time.Time) {
	began := w.next(t.Add(-w.duration))
	if !began.IsZero() && !began.After(t) {
		return true, began.Add(w.duration)
	}
	return false, began
}

// next returns when the window first begins after t; zero if not within the five years that cron looks ahead. It asks for each period between
// two changes of the clock by itself, because cron.Schedule leaves out days that have no midnight.
func (w *window) next(t time.Time) time.Time {
	for period := t.In(w.zone); ; {
		_, offset := period.Zone()
		_, end := period.ZoneBounds()
		next := w.schedule.Next(t.In(time.FixedZone("", offset)))
		// There may be no end, and on 31 December of a leap year ZoneBounds can return one that is over.
		if next.IsZero() || !end.After(period) || next.Before(end) {
			return next.In(w.zone)
		}
		t, period = end.Add(-time.Second), end // Next is after its argument
	}
}

// maxChanges limits how far Closed looks ahead, in beginnings and ends of windows.
const maxChanges = 1000

// Closed returns the name of the window because of which syncs are not allowed at t, and the time when they are allowed again, which is
// zero if unknown. The window is the one that denies them, or else the next one that allows them. The name is "" if they are allowed at t.
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

// closedBy returns the name of the window because of which syncs are not allowed at t, and until when at least.
func (all Windows) closedBy(t time.Time) (name string, until time.Time) {
	denying, opening := "", ""
	open := !slices.ContainsFunc(all, func(w window) bool { return w.allow })
	var denied, opensAt time.Time // when the windows denying and opening change
	for i := range all {
		w := &all[i]
		active, changes := w.active(t)
		switch {
		case !w.allow && active:
			denying = cmp.Or(denying, w.name)
			if changes.After(denied) {
				denied = changes
			}
		case w.allow && active:
			open = true
		case w.allow && (opening == "" || opensAt.IsZero() || !changes.IsZero() && changes.Before(opensAt)):
			opening, opensAt = w.name, changes
		}
	}
	switch {
	case denying != "":
		return denying, denied
	case open:
		return "", t
	}
	return opening, opensAt
}
