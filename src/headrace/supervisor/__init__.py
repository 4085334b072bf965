"""Several brokers on one machine as child processes: started, watched, restarted, and told what to do by a console."""
