SELECT started, ended, reason
FROM downtime
WHERE area = :area AND started >= :since
ORDER BY started DESC
