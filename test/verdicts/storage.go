package verdicts

import (
	"maps"
	"strings"
)

func storage() []Case {
	in := func(o O) O { return O{"snapshots": O{"enabled": true, "storage": o}} }
	// with returns storage of a type, with the fields of o.
	with := func(kind string, o O) O {
		all := O{"type": kind, "bucket": "backups"}
		if kind == "azure" {
			all["account"] = "plants"
		}
		maps.Copy(all, o)
		return in(all)
	}
	s3 := func(key string, value any) O { return with("s3", O{key: value}) }
	const (
		whole = "spec.snapshots.storage"
		field = whole + "."
	)
	cases := each([]string{"", "ab", "Backups", "-backups", "a/b", "plant_backups", strings.Repeat("b", 64)}, "the bucket", func(name, v string) Case { return bad(name, field+"bucket", s3("bucket", v)) })
	cases = append(cases, each([]string{"stoker", "/", "/stoker/", "../", "a/../", "a//", "a b/", strings.Repeat("a", 256) + "/"}, "the prefix",
		func(name, v string) Case { return bad(name, field+"keyPrefix", s3("keyPrefix", v)) })...)
	cases = append(cases, each([]string{"ftp://minio", "https://", "https://minio/path", "http://user:password@minio", "minio:port", "minio?x", "a b", "[::1", strings.Repeat("a", 256)}, "the endpoint",
		func(name, v string) Case { return bad(name, field+"endpoint", s3("endpoint", v)) })...)
	cases = append(cases, each([]string{"minio.example.com", "https://minio:9000", "http://minio.storage.svc:9000", "https://[fd00::1]:9000", "10.0.0.1"}, "the endpoint",
		func(name, v string) Case { return good(name, s3("endpoint", v)) })...)
	gcs := func(o O) O { return with("gcs", o) }
	key := O{"name": "gcs", "key": "key.json"}
	cases = append(cases, each([]string{"ab", "Backups", "_backups", "a/b", strings.Repeat("b", 223)}, "the bucket of GCS",
		func(name, v string) Case { return bad(name, field+"bucket", gcs(O{"bucket": v})) })...)
	cases = append(cases, each([]string{"storage.example.com", "http://storage.googleapis.com", "googleapis.com", "storage.googleapis.com.example.com", "storage.googleapis.com:8443",
		"examplegoogleapis.com", "https://x/googleapis.com", "169.254.169.254"}, "the endpoint without a Secret",
		func(name, v string) Case { return bad(name, field+"endpoint", gcs(O{"endpoint": v})) })...)
	cases = append(cases, each([]string{"storage.googleapis.com", "https://storage-plants.p.googleapis.com", "storage.europe-west3.rep.googleapis.com:443"}, "the endpoint without a Secret",
		func(name, v string) Case { return good(name, gcs(O{"endpoint": v})) })...)
	azure := func(o O) O { return with("azure", o) }
	cases = append(cases, each([]string{"", "ab", "Plants", "plants-a", strings.Repeat("a", 25)}, "the account", func(name, v string) Case { return bad(name, field+"account", azure(O{"account": v})) })...)
	cases = append(cases, each([]string{"ab", "Backups", "back--ups", "-backups", "backups-", "$root", "a.b.c", strings.Repeat("a", 64)}, "the container",
		func(name, v string) Case { return bad(name, field+"bucket", azure(O{"bucket": v})) })...)
	cases = append(cases, each([]string{"blob.example.com", "http://plants.blob.core.windows.net", "blob.core.windows.net", "plants.blob.core.windows.net.example.com", "plants.file.core.windows.net",
		"plants.blob.core.windows.net:10000", "169.254.169.254"}, "the endpoint of Azure without a Secret", func(name, v string) Case { return bad(name, field+"endpoint", azure(O{"endpoint": v})) })...)
	cases = append(cases, each([]string{"plants.blob.core.windows.net", "https://plants.blob.core.chinacloudapi.cn:443", "plants.z12.blob.storage.azure.net"}, "the endpoint of Azure without a Secret",
		func(name, v string) Case { return good(name, azure(O{"endpoint": v})) })...)
	cases = append(cases, each([]string{"s3", "gcs", "azure"}, "no bucket", func(name, v string) Case {
		o := O{"type": v}
		if v == "azure" {
			o["account"] = "plants"
		}
		return bad(name, field+"bucket", in(o))
	})...)
	return append(cases,
		good("a container of Azure", azure(O{})),
		good("every field of Azure", azure(O{"keyPrefix": "stoker/", "endpoint": "http://azurite:10000", "secretRef": key})),
		bad("an account of S3", field+"account", s3("account", "plants")),
		bad("an account of GCS", field+"account", gcs(O{"account": "plants"})),
		good("a bucket of GCS", gcs(O{})),
		good("every field of GCS", gcs(O{"bucket": "plant_backups.example.com", "keyPrefix": "stoker/", "endpoint": "http://gcs:4443", "secretRef": key})),
		good("a long name of a bucket of GCS", gcs(O{"bucket": strings.Repeat("b", 222)})),
		bad("a path in the endpoint of GCS", field+"endpoint", gcs(O{"endpoint": "gcs/path", "secretRef": key})),
		good("a backup before each sync", O{"snapshots": O{"enabled": true, "gatewayBackup": "beforeSync"}}),
		bad("an unknown value of gatewayBackup", "spec.snapshots.gatewayBackup", O{"snapshots": O{"gatewayBackup": "afterSync"}}),
		good("storage on the data volume", in(O{"type": "pvc"})),
		good("storage without a type", in(O{})),
		good("every field of S3", with("s3", O{"bucket": "plant.backups", "keyPrefix": "stoker/site-a/", "endpoint": "minio:9000", "region": "eu-central-1",
			"pathStyle": true, "secretRef": O{"name": "s3", "key": "credentials"}})),
		bad("an unknown type of storage", field+"type", with("nfs", O{})),
		bad("a bucket without a type", field+"bucket", in(O{"bucket": "backups"})),
		bad("a bucket on the data volume", field+"bucket", in(O{"type": "pvc", "bucket": "backups"})),
		bad("an account on the data volume", field+"account", in(O{"type": "pvc", "account": "plants"})),
		bad("a prefix on the data volume", whole, in(O{"type": "pvc", "keyPrefix": "stoker/"})),
		bad("an endpoint on the data volume", whole, in(O{"type": "pvc", "endpoint": "minio:9000"})),
		bad("a Secret on the data volume", whole, in(O{"type": "pvc", "secretRef": key})),
		bad("a region on the data volume", whole, in(O{"type": "pvc", "region": "eu-central-1"})),
		bad("a region of GCS", whole, gcs(O{"region": "eu-central-1"})),
		bad("path style of Azure", whole, azure(O{"pathStyle": true})),
		bad("a region in upper case", field+"region", s3("region", "EU")),
		bad("a Secret without a key", field+"secretRef.key", s3("secretRef", O{"name": "s3"})),
	)
}
