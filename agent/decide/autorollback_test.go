package decide

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"stoker.io/stoker/api/v1alpha1"
)

func TestAutoRollbackDue(t *testing.T) {
	const scan, project, config = v1alpha1.TriggerScanFailure, v1alpha1.TriggerProjectLoadError, v1alpha1.TriggerConfigError
	all := []v1alpha1.AutoRollbackTrigger{scan, project, config}
	fails := func(symptoms ...v1alpha1.AutoRollbackTrigger) LoadFailure {
		return LoadFailure{Target: two, Symptoms: symptoms, Triggers: all, Known: true, Running: true}
	}
	but := func(change func(*LoadFailure)) LoadFailure {
		l := fails(project)
		change(&l)
		return l
	}
	type at struct {
		second int
		LoadFailure
	}
	for name, c := range map[string]struct {
		failures []at
		due      v1alpha1.AutoRollbackTrigger // after the last of them; the ones before cause nothing
		retry    bool                         // a retry is asked for
	}{
		"first failure":                          {[]at{{0, fails(project)}}, "", true},
		"fails for less than half a minute":      {[]at{{0, fails(project)}, {29, fails(project)}}, "", true},
		"fails for half a minute":                {[]at{{0, fails(project)}, {30, fails(project)}}, project, false},
		"three failed scans":                     {[]at{{0, fails(scan)}, {15, fails(scan)}, {30, fails(scan)}}, scan, false},
		"two failed scans":                       {[]at{{0, fails(scan)}, {60, fails(scan)}}, "", true},
		"three failed scans, one long ago":       {[]at{{0, fails(scan)}, {60, fails(scan)}, {121, fails(scan)}}, "", true},
		"the last three of four scans":           {[]at{{0, fails(scan)}, {60, fails(scan)}, {121, fails(scan)}, {130, fails(scan)}}, scan, false},
		"three failed scans within seconds":      {[]at{{0, fails(scan)}, {1, fails(scan)}, {2, fails(scan)}}, "", true},
		"another commit":                         {[]at{{0, fails(project)}, {60, but(func(l *LoadFailure) { l.Target = one })}}, "", true},
		"the clock was set back":                 {[]at{{60, fails(project)}, {0, fails(project)}}, "", true},
		"nothing matches in between":             {[]at{{0, fails(project)}, {15, fails()}, {30, fails(project)}}, "", true},
		"a trigger that the spec does not name":  {[]at{{0, fails(project)}, {60, but(func(l *LoadFailure) { l.Triggers = all[:1] })}}, "", false},
		"the first symptom that the spec names":  {[]at{{0, fails(project, config)}, {60, but(func(l *LoadFailure) { l.Symptoms, l.Triggers = all[1:], all[2:] })}}, config, false},
		"the baseline is not known":              {[]at{{0, fails(project)}, {60, but(func(l *LoadFailure) { l.Known = false })}}, "", false},
		"an operator requested the rollback":     {[]at{{0, fails(project)}, {60, but(func(l *LoadFailure) { l.Requested = true })}}, "", false},
		"git has not been asked yet":             {[]at{{0, fails(project)}, {60, but(func(l *LoadFailure) { l.Resumes = true })}}, "", false},
		"a standby node":                         {[]at{{0, fails(project)}, {60, but(func(l *LoadFailure) { l.Standby = true })}}, "", false},
		"the gateway starts":                     {[]at{{0, fails(project)}, {60, but(func(l *LoadFailure) { l.Running = false })}}, "", false},
		"the gateway started in between":         {[]at{{0, fails(project)}, {30, but(func(l *LoadFailure) { l.Running = false })}, {60, fails(project)}}, "", true},
		"a failed scan and a project in between": {[]at{{0, fails(scan)}, {15, fails(project)}, {30, fails(scan)}, {45, fails(scan)}}, scan, false},
	} {
		t.Run(name, func(t *testing.T) {
			var f Failures
			for i, l := range c.failures {
				l.Now = day.Add(time.Duration(l.second) * time.Second)
				before := f
				var due v1alpha1.AutoRollbackTrigger
				var retry time.Time
				f, due, retry = f.Add(l.LoadFailure)
				if i < len(c.failures)-1 {
					assert.Empty(t, due, "second %d", l.second)
					continue
				}
				assert.Equal(t, c.due, due)
				assert.Equal(t, c.retry, retry.After(l.Now))
				again, _, _ := before.Add(l.LoadFailure)
				assert.Equal(t, f, again, "Add must not change its receiver")
			}
		})
	}
}
